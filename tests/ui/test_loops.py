"""The loop player in headless Chromium: it plays, keys move it, and without scripts it is a still picture."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tvm import te
from tvm.s_tir import Schedule

from tvmnotes import loops

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.ui

WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
DRAWN = "() => [...document.querySelectorAll('figure svg')].map(svg => svg.lastElementChild.innerHTML).join()"


def scheduled() -> loops.Trace:
    """A product of two matrices with cores and vectors."""
    a, b = te.placeholder((16, 16), name="A"), te.placeholder((16, 16), name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    sch = Schedule(te.create_prim_func([a, b, c]))
    row, column, summand = sch.get_loops("C")
    sch.reorder(row, summand, column)
    sch.vectorize(column)
    sch.parallel(row)
    return loops.trace(sch.mod["main"])


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: on Debian, `apt-get install chromium` brings it")
    options = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
    with sync_api.sync_playwright() as p, p.chromium.launch(executable_path=chromium, args=options) as browser:
        yield browser


@pytest.fixture(scope="module")
def found() -> loops.Trace:
    return scheduled()


@pytest.fixture(scope="module")
def file(found: loops.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two players, which share nothing."""
    file = tmp_path_factory.mktemp("loops") / "page.html"
    player = loops.page(found, cache=8, line=64)
    file.write_text(f'<!doctype html><meta charset="utf-8"><body>{player}<main>{player}</main>', encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [640, 1440])
def test_it_plays(browser: sync_api.Browser, file: Path, found: loops.Trace, width: int):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(60_000)
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url))
    try:
        page.goto(file.as_uri())
        player, other = page.locator(".tn-loops").first, page.locator("main .tn-loops")
        slider, said = player.locator("input"), player.locator(".tn-said")
        sync_api.expect(slider).to_have_attribute("max", str(len(found.steps) - 1))
        sync_api.expect(other.locator("input")).to_have_value("0")
        assert page.locator(".tn-still").count() == 0 and page.evaluate(WIDE) <= 0
        pictures = [page.evaluate(DRAWN)]

        player.get_by_role("button", name="Play").click()
        player.get_by_role("button", name="Play").wait_for()  # again, at the end
        sync_api.expect(slider).to_have_value(str(len(found.steps) - 1))
        pictures.append(page.evaluate(DRAWN))
        fetched = re.search(r"lines fetched so far: (\d+)", said.inner_text())[1]
        assert int(fetched) == found.fetched(cache=8, line=64)

        slider.focus()
        slider.press("ArrowLeft")
        sync_api.expect(slider).to_have_value(str(len(found.steps) - 2))
        sync_api.expect(slider).to_have_attribute(
            "aria-valuetext", f"step {len(found.steps) - 1} of {len(found.steps)}"
        )
        pictures.append(page.evaluate(DRAWN))
        slider.press("Home")
        player.get_by_role("button", name="One step on").press("Enter")
        sync_api.expect(slider).to_have_value("1")
        pictures.append(page.evaluate(DRAWN))
        slider.fill("0")
        assert page.evaluate(DRAWN) == pictures[0] and len(set(pictures)) == 4
        sync_api.expect(other.locator("input")).to_have_value("0")
        assert wrong == []
    finally:
        page.close()


def test_without_scripts_it_is_a_still_picture(browser: sync_api.Browser, file: Path):
    page = browser.new_page(java_script_enabled=False)
    try:
        page.goto(file.as_uri())
        image = page.locator(".tn-still img").first
        image.wait_for()
        assert image.bounding_box()["width"] > 100
        assert "reads and writes" in page.locator(".tn-still").first.inner_text()
    finally:
        page.close()
