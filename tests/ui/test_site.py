"""The site of `make site` in headless Chromium, without a network: its pages, its search, and the way to a lesson."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tvmnotes import lessons

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.ui

SITE = Path(__file__).parents[2] / "site"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
LESSONS = [f"{lesson.name}.html" for lesson in lessons.LESSONS]
# What is wider than the window, unless something around it scrolls.
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = """() => [...document.querySelectorAll("article img")].filter(image => {
  image.loading = "eager";
  return image.complete && image.naturalWidth === 0;
}).map(image => image.src)"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Site(NamedTuple):
    url: str
    browser: sync_api.Browser


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: on Debian, `apt-get install chromium` brings it")
    if not PAGES:
        pytest.skip("no site: `make site` builds it")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
        with sync_api.sync_playwright() as p, p.chromium.launch(executable_path=chromium, args=options) as browser:
            yield Site(f"http://127.0.0.1:{server.server_port}/", browser)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def page(site: Site) -> Iterator[sync_api.Page]:
    """An empty page that refuses every other host, and fails the test if it wrote an error or asked for one."""
    page = site.browser.new_page(viewport={"width": 1440, "height": 900})
    wrong = []

    def answer(route):
        if route.request.url.startswith(site.url):
            route.continue_()
        else:
            wrong.append(f"asks for {route.request.url}")
            route.abort()

    page.route(lambda url: not url.startswith(("data:", "blob:")), answer)
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    try:
        yield page
    finally:
        page.close()
    assert wrong == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_errors_and_fits(site: Site, page: sync_api.Page, name: str):
    for width in (640, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(site.url + name)
        page.locator("article").wait_for()
        assert page.evaluate(WIDE) <= 0, f"{width} pixels"
        page.wait_for_load_state("load")
        assert page.evaluate(BROKEN) == []


def test_a_search_finds_winograd(site: Site, page: sync_api.Page):
    page.goto(site.url + "index.html")
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").fill("Winograd")
    page.locator("a.md-search-result__link[href*='07_tensor_expressions']").first.wait_for()


@pytest.mark.parametrize("width", [640, 1440])
def test_a_lesson_is_one_click_from_the_start(site: Site, page: sync_api.Page, width: int):
    page.set_viewport_size({"width": width, "height": 900})
    for name in LESSONS:
        page.goto(site.url + "index.html")
        page.locator(f"article table a[href='{name}']").first.click()
        page.wait_for_url(site.url + name)


@pytest.mark.parametrize("start", ["solutions/00_start_here.html", "pages/glossary.html", "teaching.html"])
def test_a_lesson_is_two_clicks_from_any_page(site: Site, page: sync_api.Page, start: str):
    for name in LESSONS:
        page.goto(site.url + start)
        page.locator("nav.md-nav--primary > ul > li > label.md-nav__link").filter(has_text="Lessons").first.click()
        page.locator(f"nav.md-nav--primary a.md-nav__link[href$='{name}']:not([href*='solutions/'])").first.click()
        page.wait_for_url(site.url + name)


def test_the_colours_change(site: Site, page: sync_api.Page):
    page.goto(site.url + LESSONS[0])
    scheme = "() => document.body.dataset.mdColorScheme"
    before = page.evaluate(scheme)
    page.locator("form.md-header__option label:visible").first.click()
    assert page.evaluate(scheme) != before
