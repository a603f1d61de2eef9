"""vision: any picture in, as torchvision prepares it; the top classes out."""

import numpy as np
import pytest
import torch
from agreement import close
from PIL import Image, ImageFile
from torchvision import transforms

from tvmnotes import vision


@pytest.fixture(scope="module")
def sample() -> Image.Image:
    return vision.open_picture()


def torchvisions(image: Image.Image, size: int, resize: int) -> np.ndarray:
    steps = [transforms.Resize(resize), transforms.CenterCrop(size), transforms.ToTensor()]
    steps.append(transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return transforms.Compose(steps)(image)[None].numpy()


STEPS = 3  # of each pixel: it is divided, its mean is subtracted, and it is divided


# ---------------------------------------------------------------- preprocessing

SIZES = {
    "the sample": (512, 600),
    "landscape": (640, 480),
    "portrait": (333, 517),
    "odd": (301, 300),
    "odd, upright": (300, 301),
    "nearly square": (259, 256),
    "narrow": (30, 200),
    "small": (20, 20),
    "one pixel": (1, 1),
    "as large as resized": (256, 256),
}


@pytest.mark.parametrize("shape", SIZES)
def test_preprocess_gives_torchvisions_results(sample, shape):
    image = sample.resize(SIZES[shape])
    x = vision.preprocess(image)
    assert (x.shape, x.dtype, x.flags.c_contiguous) == ((1, 3, 224, 224), np.float32, True)
    close(x, torchvisions(image, 224, 256), STEPS, rounded=True)


def test_preprocess_for_other_sizes(sample):
    close(vision.preprocess(sample, 299, 342), torchvisions(sample, 299, 342), STEPS, rounded=True)
    assert vision.crop(sample, 64, 32).size == (64, 64)  # never smaller than the crop


def test_preprocess_for_other_statistics(sample):
    x = vision.preprocess(sample, mean=0.5, std=[0.25, 0.5, 1])
    pixels = np.asarray(vision.crop(sample), "float64").transpose(2, 0, 1)[None] / 255
    close(x, (pixels - 0.5) / np.array([0.25, 0.5, 1]).reshape(3, 1, 1), STEPS)
    assert (x.dtype, x.flags.c_contiguous) == (np.float32, True)


def test_the_sample_pictures():
    assert vision.sample_picture() == vision.sample_picture("grace_hopper")
    assert vision.open_picture(vision.sample_picture("coffee")).size == (600, 400)
    with pytest.raises(ValueError, match="unknown sample picture 'tea'; there are 'coffee' and 'grace_hopper'"):
        vision.sample_picture("tea")


# ---------------------------------------------------------------- reading

MODES = {"RGB": 1, "RGBA": 1, "L": 1, "LA": 1, "CMYK": 2, "P": 20, "1": 130}


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_picture_becomes_rgb(sample, tmp_path, mode):
    """What Pillow makes of it looks like the picture, in grey where the mode has no colours."""
    file = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    sample.convert(mode).save(file)
    image = vision.open_picture(file)
    assert (image.mode, image.size) == ("RGB", sample.size)
    wanted = sample.convert("L").convert("RGB") if mode in ("L", "LA", "1") else sample
    difference = np.abs(np.asarray(image, "float32") - np.asarray(wanted, "float32"))
    assert difference.mean() <= MODES[mode]
    assert np.isfinite(vision.preprocess(image)).all()


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (3, Image.Transpose.ROTATE_180),
        (6, Image.Transpose.ROTATE_90),
        (8, Image.Transpose.ROTATE_270),
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
    ],
)
def test_the_cameras_rotation_is_undone(sample, tmp_path, orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    sample.transpose(turn).save(tmp_path / "picture.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(vision.open_picture(tmp_path / "picture.png")), np.asarray(sample))


def test_a_missing_picture(tmp_path):
    for path in (tmp_path / "no.jpg", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"no picture at {path}: give the path"):
            vision.open_picture(path)


@pytest.mark.parametrize("leniently", [False, True])  # what GluonCV does to Pillow when it is imported
@pytest.mark.parametrize("name", ["text.jpg", "empty.png", "half.jpg", "half.png", "damaged.png"])
def test_a_file_that_is_no_picture(sample, tmp_path, monkeypatch, name, leniently):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", leniently)
    file = tmp_path / name
    stem, kind = name.split(".")
    sample.save(file, {"jpg": "jpeg"}.get(kind, kind))
    whole = file.read_bytes()
    middle = len(whole) // 2
    damage = {"text": b"no picture", "empty": b"", "half": whole[:middle]}
    file.write_bytes(damage.get(stem, whole[:middle] + b"?" * 64 + whole[middle + 64 :]))
    with pytest.raises(ValueError, match=f"{file} is no picture that can be read"):
        vision.open_picture(file)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is leniently


def test_a_picture_of_too_many_pixels(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match="is no picture that can be read.*exceeds limit"):
        vision.open_picture()


# ---------------------------------------------------------------- classes


def test_softmax():
    logits = np.array([[0, np.log(3)], [1e4, -1e4]])
    close(vision.softmax(logits), np.array([[0.25, 0.75], [1, 0]]), terms=4)
    assert vision.softmax(logits.astype("float32")).dtype == np.float64


def test_top_k():
    logits = np.log(np.array([1, 5, 3, 1], "float32") / 10)
    table = vision.top_k(logits, 3, classes=["ant", "bee", "cat", "dog"])
    assert list(table["class"]) == ["bee", "cat", "ant"]  # of equal ones the first
    close(table["probability"].to_numpy("float32"), np.array([0.5, 0.3, 0.1]), terms=4)  # of logits of float32
    assert list(table.index) == [1, 2, 3] and table.index.name == "rank"
    for same in (logits[None], torch.from_numpy(logits)):
        assert vision.top_k(same, 3, ["ant", "bee", "cat", "dog"]).equals(table)
    assert list(vision.top_k(logits)["class"]) == [1, 2, 0, 3]


@pytest.mark.parametrize("shape", [(2, 10), (1, 1, 10), ()])
def test_top_k_takes_one_picture(shape):
    with pytest.raises(ValueError, match=r"expected the output for one picture.*got \("):
        vision.top_k(np.zeros(shape))


def test_same_top_k(rng):
    a = rng.standard_normal((2, 10))
    b = a.copy()
    b[1, a[1].argmin()] -= 1  # the last may move
    assert vision.same_top_k(a, b, 5) and vision.same_top_k(a[0], b[0], 10)
    b[1, a[1].argmin()] = a[1].max() + 1
    assert not vision.same_top_k(a, b, 1) and vision.same_top_k(a[:1], b[:1], 1)
    with pytest.raises(ValueError, match=r"two outputs of one shape, got \(2, 10\) and \(10,\)"):
        vision.same_top_k(a, b[0])


def test_the_classes_of_imagenet():
    classes = vision.imagenet_classes()
    assert len(classes) == 1000
    assert (classes[0], classes[652], classes[999]) == ("tench", "military uniform", "toilet tissue")


def test_sixteen_bits_of_grey_keep_their_greys(tmp_path):
    Image.fromarray(np.array([[0, 0x4000, 0xFFFF]], "uint16")).save(tmp_path / "deep.png")
    assert np.asarray(vision.open_picture(tmp_path / "deep.png"))[0, :, 0].tolist() == [0, 0x40, 0xFF]
