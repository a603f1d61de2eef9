"""ImageNet's preprocessing of an image for a network, and the top-k classes of an output."""

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from tvmfast.core import data

# The statistics of ImageNet's training images, per channel, that torchvision's networks are trained with.
MEAN = np.array([0.485, 0.456, 0.406], dtype="float32")
STD = np.array([0.229, 0.224, 0.225], dtype="float32")


def sample_picture(name: str = "grace_hopper") -> Path:
    """Return the path of a photograph.

    Args:
        name: "coffee", a cup of espresso, or "grace_hopper", by the US Navy, from matplotlib.

    Raises:
        ValueError: The name is another.
    """
    if name == "coffee":
        return data.path("pictures/coffee.jpg")
    if name != "grace_hopper":
        raise ValueError(f"unknown sample picture {name!r}; there are 'coffee' and 'grace_hopper'")
    import matplotlib.cbook  # for speed: most images are the user's own

    return Path(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))


def open_picture(path: str | os.PathLike | None = None) -> Image.Image:
    """Open an image in RGB, with its camera's rotation applied.

    Args:
        path: The image's file; None means the sample picture.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Pillow cannot read it as an image.
    """
    path = Path(path) if path is not None else sample_picture()
    if not path.is_file():
        raise FileNotFoundError(
            f"no picture at {path}: give the path of a JPEG or PNG file, or None for the sample"
        )
    leniently = ImageFile.LOAD_TRUNCATED_IMAGES
    # GluonCV sets it for the whole process: a truncated image would be grey in part.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
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
    """Crop as for ImageNet: scale the shorter side to `resize` pixels, take the middle `size` x `size`."""
    width, height = (max(size, int(resize * n / min(image.size))) for n in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)  # both as torchvision rounds
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return image.crop((left, top, left + size, top + size))


def preprocess(image: Image.Image, size: int = 224, resize: int = 256, mean=MEAN, std=STD) -> np.ndarray:
    """Convert an image to a network's input, cropped and normalized as in training.

    A network of `models.load` has the other four arguments as its attribute `preprocessing`.

    Args:
        image: A Pillow image in RGB.
        size: Side of the crop in pixels.
        resize: Length in pixels that the shorter side is scaled to before.
        mean: Mean of a pixel (0 to 1) in training: a number, or one for each channel.
        std: Standard deviation, likewise.

    Returns:
        float32 (1, 3, size, size).
    """
    pixels = np.asarray(crop(image, size, resize), dtype="float32") / 255
    normalized = (pixels - np.asarray(mean, "float32")) / np.asarray(std, "float32")
    return np.ascontiguousarray(normalized.transpose(2, 0, 1)[None])


def imagenet_classes() -> list[str]:
    """List ImageNet's 1000 class names, in the order of a network's outputs, from torchvision's metadata."""
    from torchvision.models import ResNet18_Weights  # for speed: what runs a network needs no torch

    return ResNet18_Weights.DEFAULT.meta["categories"]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Convert scores to probabilities along the last axis, in float64."""
    shifted = np.exp(np.asarray(logits, dtype="float64") - np.max(logits, axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def top_k(logits: np.ndarray, k: int = 5, classes: list[str] | None = None):
    """Return the `k` most probable classes of an output, the most probable first.

    Args:
        logits: Shape (classes,) or (1, classes).
        k: Number of classes.
        classes: Names of the classes; None means their indices.

    Returns:
        A pandas DataFrame with the columns class and probability (softmax over all classes).

    Raises:
        ValueError: The shape is another.
    """
    import pandas as pd  # for speed: only where a table is shown

    scores = np.asarray(logits)
    if scores.ndim == 2 and len(scores) == 1:
        scores = scores[0]
    if scores.ndim != 1:
        raise ValueError(
            "top_k: expected the output for one picture, shape (classes,) or (1, classes); "
            f"got {scores.shape}"
        )
    probabilities = softmax(scores)
    order = np.argsort(-probabilities, kind="stable")[:k]
    names = [classes[i] for i in order] if classes is not None else list(order)
    rank = pd.RangeIndex(1, len(order) + 1, name="rank")
    return pd.DataFrame({"class": names, "probability": probabilities[order]}, index=rank)


def same_top_k(a: np.ndarray, b: np.ndarray, k: int = 5) -> bool:
    """Tell whether two outputs, shape (…, classes), rank the same `k` classes first, in the same order.

    Raises ValueError if their shapes differ.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise ValueError(f"same_top_k: expected two outputs of one shape, got {a.shape} and {b.shape}")
    return bool((np.argsort(-a, kind="stable")[..., :k] == np.argsort(-b, kind="stable")[..., :k]).all())
