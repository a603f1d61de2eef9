"""Train the course's digit network and write its files beside this script: `python data/digits/train.py`.

Takes about a minute on two quiet cores. Needs torch, scikit-learn (the pictures), onnx and onnxruntime (the checks).
The seed is fixed, so a second run on the same machine gives the same weights; another CPU, another thread count or
another PyTorch adds floating-point numbers in another order and gives slightly different ones.
"""

import math
import os
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    # Set before torch loads OpenMP: a thread that waits gives up its core. Threads that spin instead make this many
    # times slower as soon as another program wants one of the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import onnx
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from tvmnotes.digits import ResNet20, preprocess

HERE = Path(__file__).parent
SEED = 0
EPOCHS = 20
BATCH = 64


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """The pictures of scikit-learn's load_digits: images uint8 (1797, 32, 32), 0 to 255, and labels int64 (1797,)."""
    digits = load_digits()
    return enlarge(digits.images), digits.target.astype("int64")


def enlarge(images: np.ndarray) -> np.ndarray:
    """Scale pictures (N, 8, 8) with values 0 to 16 by bilinear interpolation to uint8 (N, 32, 32) with values 0 to 255.

    Every weight is a multiple of 1/8, so the result is exact and the same on every machine.
    """
    centre = ((np.arange(32) + 0.5) / 4 - 0.5).clip(0, 7)  # of each new pixel, in old pixels
    weights = (1 - abs(centre[:, None] - np.arange(8))).clip(0)
    return np.floor(weights @ images @ weights.T * (255 / 16) + 0.5).astype("uint8")


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and the held-out pictures, ascending: every fifth picture, counted label by label.

    Each digit's share is the same in both up to one picture. No random number is drawn, so no library can change it.
    """
    held_out = np.sort(np.argsort(labels, kind="stable")[::5])
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn pictures, float32 (N, 32, 32), by up to 12 degrees, scale by up to 10 % and shift by up to 2 pixels."""
    n = len(images)
    turn, scale, right, down = torch.rand(4, n, generator=generator) * 2 - 1
    turn, scale = turn * math.radians(12), 1 + 0.1 * scale
    cos, sin = scale * turn.cos(), scale * turn.sin()
    affine = torch.stack([cos, -sin, right / 8, sin, cos, down / 8], dim=1).view(n, 2, 3)  # the picture is 2 units wide
    grid = F.affine_grid(affine, [n, 1, 32, 32], align_corners=False)
    return F.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def train(images: np.ndarray, labels: np.ndarray, test_images: np.ndarray, test_labels: np.ndarray) -> ResNet20:
    """Train for EPOCHS epochs and give the last epoch's network in eval mode; the held-out pictures choose nothing."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(SEED)
    net = ResNet20()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS * steps)
    pixels, targets = torch.from_numpy(images).float(), torch.from_numpy(labels)

    start = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        net.train()
        total = 0.0
        for batch in torch.randperm(len(pixels), generator=generator).split(BATCH):
            inputs = torch.from_numpy(preprocess(augment(pixels[batch], generator).numpy()))
            loss = F.cross_entropy(net(inputs), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        net.eval()
        loss, right = total / len(pixels), (predict(net, test_images).argmax(1) == test_labels).mean()
        seconds = time.perf_counter() - start
        print(f"epoch {epoch:2}/{EPOCHS}  loss {loss:.4f}  held-out {right:.2%}  {seconds:5.1f} s", flush=True)
    return net


@torch.no_grad()
def predict(net: ResNet20, images: np.ndarray) -> np.ndarray:
    """Logits float32 (N, 10) of pictures (N, 32, 32) with values 0 to 255."""
    return net(torch.from_numpy(preprocess(images))).numpy()


def export_onnx(net: ResNet20, path: Path) -> None:
    """Write the network as one ONNX file: input "image" float32 (N, 1, 32, 32) for any N, output "logits" (N, 10)."""
    with warnings.catch_warnings():
        # The TorchScript exporter needs nothing beyond torch; the newer one would bring in onnxscript.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.onnx|__main__")
        torch.onnx.export(
            net,
            (torch.zeros(1, 1, 32, 32),),
            path,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
            opset_version=17,
            dynamo=False,
        )


def check_onnx(path: Path, net: ResNet20, images: np.ndarray) -> None:
    """Raise unless the file is valid ONNX and gives the network's logits to 1e-5 of the largest."""
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": preprocess(images)})
    expected = predict(net, images)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * abs(expected).max())


def main() -> None:
    images, labels = load_images()
    training, held_out = split(labels)
    test_images, test_labels = images[held_out], labels[held_out]
    net = train(images[training], labels[training], test_images, test_labels)

    with TemporaryDirectory(dir=HERE) as folder:  # the old files stay until the new ones are whole and checked
        new = Path(folder)
        torch.save(net.state_dict(), new / "digits_resnet20.pt")
        export_onnx(net, new / "digits_resnet20.onnx")
        check_onnx(new / "digits_resnet20.onnx", net, test_images)
        np.savez_compressed(new / "test.npz", images=test_images, labels=test_labels)
        for path in sorted(new.iterdir()):
            print(f"{path.name}: {path.stat().st_size:,} bytes")
            os.replace(path, HERE / path.name)

    right = int((predict(net, test_images).argmax(1) == test_labels).sum())
    print(f"done: {right} of {len(test_labels)} held-out pictures right ({right / len(test_labels):.2%})")


if __name__ == "__main__":
    main()
