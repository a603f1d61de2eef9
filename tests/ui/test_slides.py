"""The slides of `make slides` in headless Chromium, as on a projector: nothing is cut off or has to be scrolled."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import slides
from tvmnotes import lessons

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.ui

OVER = """open => {
  document.querySelectorAll("details").forEach(question => { question.open = open; });
  fit();
  return slides.flatMap((slide, place) => {
    const over = [slide.scrollWidth - slide.clientWidth, slide.scrollHeight - slide.clientHeight];
    return over.some(pixels => pixels > 0) ? [`slide ${place + 1}: ${over} pixels too large`] : [];
  });
}"""
BROKEN = "() => [...document.images].filter(image => image.complete && image.naturalWidth === 0).length"
HERE = "() => Math.round(scrollY / innerHeight) + 1"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sync_api.Page, Path]]:
    """A window as large as a small projector's picture, and the folder of the slides."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: on Debian, `apt-get install chromium` brings it")
    folder = tmp_path_factory.mktemp("slides")
    slides.write(folder)
    options = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with sync_api.sync_playwright() as p, p.chromium.launch(executable_path=chromium, args=options) as browser:
        yield browser.new_page(viewport={"width": 1280, "height": 720}), folder


@pytest.mark.parametrize("name", [lesson.name for lesson in lessons.LESSONS])
def test_slides_fit_with_answers_folded_and_open(page: tuple[sync_api.Page, Path], name: str):
    shown, folder = page
    shown.goto((folder / f"{name}.html").as_uri())
    shown.wait_for_load_state("load")
    assert shown.evaluate(BROKEN) == 0
    assert shown.evaluate(OVER, False) == [] and shown.evaluate(OVER, True) == []


def test_keys_turn_the_slides(page: tuple[sync_api.Page, Path]):
    shown, folder = page
    shown.goto((folder / f"{lessons.LESSONS[0].name}.html").as_uri())
    for key, place in (("ArrowRight", 2), ("PageDown", 3), ("ArrowLeft", 2)):
        shown.keyboard.press(key)
        shown.wait_for_function(f"place => ({HERE})() === place", arg=place)
