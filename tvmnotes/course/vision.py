"""This module makes a picture a network's input, as for ImageNet, and tells the top-k classes of the output."""

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ..base import data

# The statistics of ImageNet's training images, per channel, that torchvision's networks are trained with.
MEAN = np.array([0.485, 0.456, 0.406], dtype="float32")
STD = np.array([0.229, 0.224, 0.225], dtype="float32")


def sample_picture(name: str = "grace_hopper") -> Path:
    """Return the path of a photograph: "coffee", a cup of espresso; or "grace_hopper", by the US Navy, of matplotlib's.

    Raises ValueError for another name.
    """
    if name == "coffee":
        return data.path("pictures/coffee.jpg")
    if name != "grace_hopper":
        raise ValueError(f"unknown sample picture {name!r}; there are 'coffee' and 'grace_hopper'")
    import matplotlib.cbook  # for speed: most pictures are somebody's own

    return Path(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))


def open_picture(path: str | os.PathLike | None = None) -> Image.Image:
    """Open the picture at `path`, in RGB, with its camera's rotation applied; the sample picture where `path` is None.

    Raises FileNotFoundError for a missing file, ValueError for one that is no picture that Pillow reads.
    """
    path = Path(path) if path is not None else sample_picture()
    if not path.is_file():
        raise FileNotFoundError(
            f"no picture at {path}: give the path of a JPEG or PNG file, or None for the sample"
        )
    leniently = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = (
        False  # GluonCV sets it for the whole process, and half a picture comes out grey
    )
    try:
        with Image.open(path) as image:
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I;16"):  # 16 bits of grey, which Pillow would clip to 8
                image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
            return image.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{path} is no picture that can be read ({error}): expected a JPEG or PNG file"
        ) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = leniently


def crop(image: Image.Image, size: int = 224, resize: int = 256) -> Image.Image:
    """Crop as for ImageNet: scale the shorter side to `resize` pixels, then take the middle `size` x `size`."""
    width, height = (max(size, int(resize * n / min(image.size))) for n in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)  # both as torchvision rounds
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image.crop((left, top, left + size, top + size))


def preprocess(image: Image.Image, size: int = 224, resize: int = 256, mean=MEAN, std=STD) -> np.ndarray:
    """Make a picture the network's input: float32, shape (1, 3, size, size), cropped and normalized as in training.

    `mean` and `std` are those of a pixel (0 to 1) in training: a number, or one for each channel. A network of
    `models.load` has these four arguments as its attribute `preprocessing`.
    """
    pixels = np.asarray(crop(image, size, resize), dtype="float32") / 255
    normalized = (pixels - np.asarray(mean, "float32")) / np.asarray(std, "float32")
    return np.ascontiguousarray(normalized.transpose(2, 0, 1)[None])


def imagenet_classes() -> list[str]:
    """List the names of ImageNet's 1000 classes, in the order of a network's outputs, from torchvision's metadata."""
    from torchvision.models import ResNet18_Weights  # for speed: what runs a network needs no torch

    return ResNet18_Weights.DEFAULT.meta["categories"]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Turn scores into probabilities along the last axis, in float64."""
    shifted = np.exp(np.asarray(logits, dtype="float64") - np.max(logits, axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def top_k(logits: np.ndarray, k: int = 5, classes: list[str] | None = None):
    """Return the `k` most probable classes of one output, shape (classes,) or (1, classes), as a pandas DataFrame.

    Its columns are class (the name, or the index where `classes` is None) and probability (softmax over all), the most
    probable first.
    """
    import pandas as pd  # for speed: only where a table is shown

    scores = np.asarray(logits)
    if scores.ndim == 2 and len(scores) == 1:
        scores = scores[0]
    if scores.ndim != 1:
        raise ValueError(
            f"top_k: expected the output for one picture, shape (classes,) or (1, classes); got {scores.shape}"
        )
    probabilities = softmax(scores)
    order = np.argsort(-probabilities, kind="stable")[:k]
    names = [classes[i] for i in order] if classes is not None else list(order)
    rank = pd.RangeIndex(1, len(order) + 1, name="rank")
    return pd.DataFrame({"class": names, "probability": probabilities[order]}, index=rank)


def same_top_k(a: np.ndarray, b: np.ndarray, k: int = 5) -> bool:
    """Say whether two outputs for the same pictures, shape (…, classes), rank the same `k` classes first, in order."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"same_top_k: expected two outputs of one shape, got {a.shape} and {b.shape}")
    return bool((np.argsort(-a, kind="stable")[..., :k] == np.argsort(-b, kind="stable")[..., :k]).all())
