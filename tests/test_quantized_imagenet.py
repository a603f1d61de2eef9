"""The pretrained ImageNet network in int8: it sees in new pictures what it sees in float32."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

import tvmnotes as tn
from tvmnotes import vision

BATCH = 2


def crops(net, count: int, rng) -> np.ndarray:
    """Batches of crops of the shipped pictures, some of them mirrored, of random brightness and contrast."""
    pictures = [vision.open_picture(vision.sample_picture(name)) for name in ("coffee", "grace_hopper")]

    def one(picture: Image.Image) -> np.ndarray:
        side = round(min(picture.size) * rng.uniform(0.6, 1))
        left, top = (int(rng.integers(size - side, endpoint=True)) for size in picture.size)
        part = picture.crop((left, top, left + side, top + side))
        part = ImageOps.mirror(part) if rng.integers(2) else part
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast):
            part = change(part).enhance(rng.uniform(0.8, 1.2))
        return vision.preprocess(part, **net.preprocessing)[0]

    found = np.stack([one(pictures[n % len(pictures)]) for n in range(count)])
    return found.reshape(-1, BATCH, *found.shape[1:])


@pytest.mark.full
def test_efficientnet_lite0_sees_the_same_in_int8():
    """In crops that neither the ranges nor the corrections of the biases have seen."""
    rng = np.random.default_rng(0)
    net = tn.models.load("efficientnet_lite0")
    mod, params = tn.from_pytorch(net, {"x": (BATCH, *net.input_shape[1:])})
    seen, new = crops(net, 32, rng), crops(net, 120, rng)
    quantized = tn.quantize(mod, params, [*seen])
    wanted, got = (np.concatenate([*map(lib, new)]) for lib in (tn.build(mod, params), tn.build(*quantized)))
    same = (wanted.argmax(1) == got.argmax(1)).mean()
    cosine = (wanted * got).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(got, axis=1)
    assert same >= 0.95 and cosine.mean() > 0.99, f"{same:.1%} of the classes, cosine {cosine.mean():.4f}"
