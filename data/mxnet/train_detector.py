"""Train the course's digit detector, write it as an MXNet checkpoint: `python data/mxnet/train_detector.py`.

It is an SSD with one map of anchors, for pictures that `tvmnotes.digits.scene` composes. PyTorch trains it for some
minutes, MXNet's operators write the symbol, and MXNet's detections on scenes of held-out digits are counted. It
needs MXNet (Python 3.10 or 3.11), scikit-learn, and what data/digits/train.py imports. Training stops after SECONDS, so
the weights differ from run to run.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as data/digits/train.py explains

import mxnet as mx
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tvmnotes import digits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "digits"))
from train import load_images, split  # noqa: E402

NAME = "digits_ssd"
SCENES, STEPS, BATCH, SECONDS = 6000, 3000, 64, 150
WIDTHS = ((16, 2), (32, 2), (64, 2), (64, 1), (64, 1), (64, 1))  # channels and stride of each convolution
SIZES = (0.27, 0.41)  # sides of the two anchors at each place, as parts of the picture's side
VARIANCES = (0.1, 0.1, 0.2, 0.2)
MEAN, SCALE = 40.0, 1 / 80  # of the pixels, 0 to 255


class Detector(nn.Module):
    """Pixels (N, 1, 96, 96) to scores of the classes (N, 11, 288), 0 the background, and offsets (N, 288, 4)."""

    def __init__(self):
        super().__init__()
        self.body, channels = nn.ModuleList(), 1
        for width, stride in WIDTHS:
            conv = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
            self.body.append(nn.Sequential(conv, nn.BatchNorm2d(width)))
            channels = width
        self.classes, self.offsets = (nn.Conv2d(channels, 2 * n, 3, padding=1) for n in (11, 4))

    def forward(self, x):
        x = (x - MEAN) * SCALE
        for layer in self.body:
            x = torch.relu(layer(x))
        scores, offsets = (head(x).permute(0, 2, 3, 1) for head in (self.classes, self.offsets))
        return scores.reshape(len(x), -1, 11).transpose(1, 2), offsets.reshape(len(x), -1, 4)


def anchors() -> np.ndarray:
    """Middles and sides of the anchors (288, 4) in parts of the picture's side, in MultiBoxPrior's order."""
    middle = (np.arange(12) + 0.5) / 12
    y, x = np.meshgrid(middle, middle, indexing="ij")
    return np.stack([np.stack([x, y, 0 * x + s, 0 * x + s], -1) for s in SIZES], 2).reshape(-1, 4)


def targets(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each anchor the class (0: none; -1: not counted) and the offsets of the box that it overlaps most."""
    a, b = anchors(), boxes[:, 1:] / 96
    low = np.maximum((a[:, :2] - a[:, 2:] / 2)[:, None], b[:, :2])
    high = np.minimum((a[:, :2] + a[:, 2:] / 2)[:, None], b[:, 2:])
    shared = (high - low).clip(0).prod(2)
    overlap = shared / (a[:, 2:].prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1) - shared)
    overlap[overlap.argmax(0), np.arange(len(b))] = 1.0  # each box has an anchor
    which, most = overlap.argmax(1), overlap.max(1)
    kind = np.where(most > 0.5, boxes[which, 0] + 1, np.where(most > 0.4, -1, 0))
    middle, side = (b[:, :2] + b[:, 2:])[which] / 2, (b[:, 2:] - b[:, :2])[which]
    offsets = np.hstack([(middle - a[:, :2]) / a[:, 2:], np.log(side / a[:, 2:])]) / VARIANCES
    return kind.astype("int64"), offsets.astype("float32")


def loss_of(scores, offsets, kind, wanted):
    """Cross-entropy of the boxes and of three times as many others, the worst ones; smooth L1 of the boxes' offsets."""
    of_box = kind > 0
    entropy = F.cross_entropy(scores, kind.clamp(min=0), reduction="none")
    others = entropy.detach().masked_fill(kind != 0, -1).flatten()
    worst = others >= others.topk(3 * int(of_box.sum())).values[-1]
    counted = of_box.flatten() | worst
    return (entropy.flatten()[counted].sum() + F.smooth_l1_loss(offsets[of_box], wanted[of_box], reduction="sum")) / (
        of_box.sum()
    )


def train(images, labels) -> Detector:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    scenes = [digits.scene(images, labels, rng) for _ in range(SCENES)]
    pixels = torch.from_numpy(np.stack([picture for picture, _ in scenes])[:, None])
    kinds, offsets = (torch.from_numpy(np.stack(each)) for each in zip(*(targets(b) for _, b in scenes), strict=True))
    net = Detector()
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-3)
    start = time.perf_counter()
    for step in range(STEPS):
        done = max(step / STEPS, (time.perf_counter() - start) / SECONDS)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, step / 50) * (1 + np.cos(np.pi * done)) / 2
        batch = torch.from_numpy(rng.integers(0, SCENES, BATCH))
        loss = loss_of(*net(pixels[batch].float()), kinds[batch], offsets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}  {time.perf_counter() - start:.0f} s", flush=True)
    return net.eval()


def network(net: Detector):
    """The symbol of the network, and its parameters by name."""
    x, params = (mx.sym.var("data") - MEAN) * SCALE, {}
    for number, ((width, stride), (conv, norm)) in enumerate(zip(WIDTHS, net.body, strict=True), 1):
        name = f"conv{number}"
        x = mx.sym.Convolution(x, name=name, num_filter=width, kernel=(3, 3), stride=(stride, stride), pad=(1, 1),
                               no_bias=True)  # fmt: skip
        x = mx.sym.BatchNorm(x, name=f"bn{number}", fix_gamma=False, eps=norm.eps)
        x = mx.sym.Activation(x, name=f"relu{number}", act_type="relu")
        params |= {
            f"{name}_weight": conv.weight, f"bn{number}_gamma": norm.weight, f"bn{number}_beta": norm.bias,
            f"bn{number}_moving_mean": norm.running_mean, f"bn{number}_moving_var": norm.running_var,
        }  # fmt: skip
    heads = {}
    for name, conv, count in (("classes", net.classes, 22), ("offsets", net.offsets, 8)):
        head = mx.sym.Convolution(x, name=name, num_filter=count, kernel=(3, 3), pad=(1, 1))
        heads[name] = mx.sym.Flatten(mx.sym.transpose(head, axes=(0, 2, 3, 1)), name=f"{name}_flat")
        params |= {f"{name}_weight": conv.weight, f"{name}_bias": conv.bias}
    scores = mx.sym.transpose(mx.sym.Reshape(heads["classes"], shape=(0, -1, 11)), axes=(0, 2, 1))
    found = mx.sym.contrib.MultiBoxDetection(
        mx.sym.softmax(scores, axis=1, name="probabilities"), heads["offsets"],
        mx.sym.contrib.MultiBoxPrior(x, name="anchors", sizes=SIZES, ratios=(1.0,)),
        name="detections", threshold=0.3, nms_threshold=0.4, force_suppress=True, variances=VARIANCES, nms_topk=100,
    )  # fmt: skip
    return found, {name: mx.nd.array(array.detach().numpy()) for name, array in params.items()}


def main() -> None:
    images, labels = load_images()
    training, _ = split(labels)
    symbol, params = network(train(images[training], labels[training]))
    states = set(symbol.list_auxiliary_states())
    rng, held_out = np.random.default_rng(1), digits.load_test_set()
    scenes = [digits.scene(*held_out, rng) for _ in range(200)]
    given = {name: array for name, array in params.items() if name not in states}
    given["data"] = mx.nd.array(np.stack([picture for picture, _ in scenes])[:, None])
    bound = symbol.bind(mx.cpu(), given, aux_states={name: params[name] for name in states})
    detections = bound.forward(is_train=False)[0].asnumpy()
    right = sum(digits.found(made, boxes) for made, (_, boxes) in zip(detections, scenes, strict=True))
    drawn = int(((detections[:, :, 0] >= 0) & (detections[:, :, 1] >= 0.5)).sum())
    total = sum(len(boxes) for _, boxes in scenes)
    print(f"{right} of {total} digits found and read in 200 scenes, with {drawn} boxes")
    if right < 0.93 * total or drawn > 1.05 * total:
        raise SystemExit("too few digits are found; the files are left as they were. Train again on a quiet machine")
    named = {f"{'aux' if name in states else 'arg'}:{name}": array for name, array in params.items()}
    mx.nd.save(str(HERE / f"{NAME}-0000.params"), named)
    symbol.save(str(HERE / f"{NAME}-symbol.json"))


if __name__ == "__main__":
    main()
