"""Every notebook as a reader meets it in JupyterLab: as it is stored, and after Restart Kernel and Run All Cells.

With TVMNOTES_SCREENSHOTS=folder, both are also left there as pictures, NAME-stored.png and NAME-run.png.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
import requests

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.ui

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(p.relative_to(NOTEBOOKS).as_posix() for f in ("", "solutions") for p in (NOTEBOOKS / f).glob("*.ipynb"))
RUN_SECONDS = 1800
# Those of `make lab`; and all cells are in the page, those out of sight too, and nothing follows the last.
SETTINGS = json.loads((NOTEBOOKS.parent / "tools/jupyter/labconfig/default_setting_overrides.json").read_text()) | {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none", "scrollPastEnd": False},
}
# A traceback has the type of stderr: both are shown as red boxes. A bar is red when it is closed before its end.
SEE = """() => [...document.querySelectorAll(".jp-Notebook .jp-Cell")].map(cell => {
  const all = selector => [...cell.querySelectorAll(selector)];
  const loaded = image => image.complete && image.naturalWidth > 0;
  return {
    rendered: cell.querySelector(".jp-MarkdownOutput > *") !== null,
    prompt: cell.querySelector(".jp-InputArea-prompt").textContent,
    figures: all(".jp-OutputArea-output:is(.jp-RenderedImage, .jp-RenderedHTML) img:not(.tn-still img)")
      .filter(loaded).length,
    tables: all(".jp-OutputArea-output.jp-RenderedHTML table").length,
    diagrams: all(".jp-RenderedMermaid:not(.jp-mod-warning) img").filter(loaded).length,
    red: all("[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedMermaid.jp-mod-warning details > pre")
      .map(box => box.textContent).concat(all(".progress-bar-danger").map(() => "a progress bar cut short")),
    broken: all("img").filter(image => !loaded(image)).map(image => image.src.slice(0, 80)),
  };
})"""
# All cells wait as [*] from the start; an error, or the death of the kernel (which a dialog tells), ends the run early.
DONE = """() => {
  const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputArea-prompt")].map(p => p.textContent);
  const idle = document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status === "idle";
  return document.querySelector(".jp-Dialog") !== null
      || (idle && prompts.some(p => /\\d/.test(p)) && !prompts.some(p => p.includes("*")));
}"""


# Pixels by which a notebook is wider than its panel; what is inside an output that scrolls does not count.
WIDER = """() => Math.max(...[...document.querySelectorAll(".jp-Notebook .jp-WindowedPanel-outer")]
  .map(panel => panel.scrollWidth - panel.clientWidth))"""
# Names in the file browser that end in dots.
CUT = """() => [...document.querySelectorAll(".jp-DirListing-itemText")]
  .filter(name => name.scrollWidth > name.clientWidth).map(name => name.textContent)"""
IN_SIGHT = """() => {
  const row = document.querySelector(".jp-MarkdownViewer [data-jupyter-id='virtual-machine']");
  const top = row?.getBoundingClientRect().top;
  return top > 0 && top < innerHeight;
}"""


class Lab(NamedTuple):
    url: str
    headers: dict[str, str]
    notebooks: Path  # a copy
    browser: sync_api.Browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab on a copy of the notebooks, without this user's Jupyter settings, and a browser to look at it."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: on Debian, `apt-get install chromium` brings it")
    folder = tmp_path_factory.mktemp("lab")
    notebooks = shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    (folder / "config" / "labconfig").mkdir(parents=True)
    (folder / "config" / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    token = secrets.token_hex(16)
    # Under `make lab` progress bars are drawn, so here too.
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("JUPYTER", "TQDM_"))}
    env |= {f"JUPYTER_{kind.upper()}_DIR": str(folder / kind) for kind in ("config", "data", "runtime")}
    env |= {"JUPYTER_TOKEN": token, "IPYTHONDIR": str(folder / "ipython")}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*command, f"--notebook-dir={notebooks}"], env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300  # once it listens, the server leaves a file that says where
        while not (found := list(filter(None, (p.read_text() for p in folder.glob("runtime/jpserver-*.json"))))):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"JupyterLab did not start:\n{(folder / 'log').read_text()}")
            time.sleep(0.2)
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic"]
        with sync_api.sync_playwright() as p, p.chromium.launch(executable_path=chromium, args=options) as browser:
            yield Lab(json.loads(found[0])["url"], {"Authorization": f"token {token}"}, notebooks, browser)
    finally:
        server.terminate()
        server.wait(300)


def look(lab: Lab, name: str) -> list[str]:
    """Whatever is wrong with a notebook as it is stored and, after that, as it runs."""
    cells = nbformat.read(lab.notebooks / name, as_version=4).cells
    page = lab.browser.new_page(viewport={"width": 1400, "height": 1000}, extra_http_headers=lab.headers)
    page.set_default_timeout(120_000)
    try:
        page.goto(f"{lab.url}lab/tree/{name}?reset")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        found = [f"stored: {text}" for text in problems(page, cells)]
        page.set_viewport_size({"width": 640, "height": 1000})
        if wider := page.evaluate(WIDER):
            found.append(f"stored: {wider} pixels wider than a panel in a window of 640")
        page.set_viewport_size({"width": 1400, "height": 1000})
        screenshot(page, name.replace(".ipynb", "-stored"))
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(state="attached")
        # What is seen from here on comes from this run.
        for menu, item in ("Edit", "Clear Outputs of All Cells"), ("Run", "Restart Kernel and Run All Cells"):
            page.get_by_role("menuitem", name=menu, exact=True).click()
            page.get_by_role("menuitem", name=item).click()
        page.locator(".jp-Dialog .jp-mod-accept").click()
        page.locator(".jp-Dialog").wait_for(state="detached")
        page.wait_for_function(DONE, timeout=RUN_SECONDS * 1000, polling=500)
        found += [f"run: {text}" for text in problems(page, cells)]
        screenshot(page, name.replace(".ipynb", "-run"))
        return found
    finally:
        page.close()
        for session in requests.get(f"{lab.url}api/sessions", headers=lab.headers, timeout=120).json():
            requests.delete(f"{lab.url}api/sessions/{session['id']}", headers=lab.headers, timeout=120)


def problems(page: sync_api.Page, cells: list[nbformat.NotebookNode]) -> list[str]:
    """What is wrong with the page, which shows cells. Looks again for a while, as pictures may still be loading."""
    for _ in range(120):
        found = [f"dialog: {text}" for text in page.locator(".jp-Dialog").all_inner_texts()]
        views = page.evaluate(SEE)
        if len(views) != len(cells):
            found.append(f"{len(views)} of {len(cells)} cells")
        for number, (cell, view) in enumerate(zip(cells, views, strict=False)):
            found += [f"cell {number}: {text}" for text in cell_problems(cell, view)]
        if not found:
            break
        page.wait_for_timeout(500)
    return found


def cell_problems(cell: nbformat.NotebookNode, view: dict) -> Iterator[str]:
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    expected = {
        "figures": sum(any(kind.startswith("image/") for kind in d) for d in data),
        "tables": sum(d.get("text/html", "").count("<table") for d in data),
        "diagrams": sum(d.get("text/markdown", "").count("```mermaid") for d in data),
    }
    if cell.cell_type == "markdown":
        expected["diagrams"] = cell.source.count("```mermaid")
        if not view["rendered"]:
            yield "not rendered"
    elif cell.cell_type == "code" and cell.source.strip() and not any(map(str.isdigit, view["prompt"])):
        yield "not run"
    yield from (f"{view[what]} of {count} {what}" for what, count in expected.items() if view[what] != count)
    yield from (f"broken image: {source}" for source in view["broken"])
    if "raises-exception" not in cell.metadata.get("tags", []):
        yield from (f"red box: {text}" for text in view["red"])


def screenshot(page: sync_api.Page, name: str) -> None:
    """The whole notebook; one that is longer than Chromium can draw at once goes on in NAME-2.png and so on."""
    if folder := os.environ.get("TVMNOTES_SCREENSHOTS"):
        box = page.locator(".jp-Notebook .jp-WindowedPanel-outer")
        page.set_viewport_size({"width": 1400, "height": 1000})
        height, shown = box.evaluate("box => [box.scrollHeight, box.clientHeight]")
        frame = 1000 - shown
        page.set_viewport_size({"width": 1400, "height": min(height + frame, 8000)})
        for part, top in enumerate(range(0, height, 8000 - frame), 1):
            box.evaluate("(box, top) => { box.scrollTop = top }", top)
            page.wait_for_timeout(500)
            page.screenshot(path=Path(folder) / (f"{name}.png" if part == 1 else f"{name}-{part}.png"))


@pytest.mark.parametrize("name", NAMES)
def test_notebook(lab: Lab, name: str):
    found = look(lab, name)
    assert not found, "\n".join(found)


def test_what_is_wrong_is_seen(lab: Lab):
    new = nbformat.v4
    table = new.new_output("display_data", {"text/html": "<table></table>"})
    cells = [
        new.new_markdown_cell("```mermaid\nflowchart LR\nA --> --> [\n```\n![missing](missing.png)"),
        new.new_code_cell("import sys; print('careful', file=sys.stderr)"),
        new.new_code_cell("table = None", outputs=[table], execution_count=2),
        new.new_code_cell("from tqdm.auto import tqdm\ntqdm(total=2).close()"),
        new.new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
        new.new_code_cell("1 / 0"),
        new.new_code_cell("never = 'reached'"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(new.new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.notebooks / "wrong.ipynb")
    found = [text for text in look(lab, "wrong.ipynb") if text.startswith("run: ")]
    expected = [
        "run: cell 0: 0 of 1 diagrams",
        "run: cell 0: broken image: ",
        "run: cell 0: red box: ",
        "run: cell 1: red box: careful",
        "run: cell 2: 0 of 1 tables",
        "run: cell 3: red box: a progress bar",
        "run: cell 5: red box: ------",
        "run: cell 6: not run",
    ]
    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected


def test_the_side_bar_shows_whole_names(lab: Lab):
    page = lab.browser.new_page(viewport={"width": 1400, "height": 1000}, extra_http_headers=lab.headers)
    page.set_default_timeout(120_000)
    try:
        page.goto(f"{lab.url}lab?reset")
        page.get_by_text("capstone_faster_kernel.ipynb", exact=True).wait_for()
        assert page.evaluate(CUT) == []
    finally:
        page.close()


def test_a_link_to_the_glossary_opens_it_at_the_term(lab: Lab):
    page = lab.browser.new_page(viewport={"width": 1400, "height": 1000}, extra_http_headers=lab.headers)
    page.set_default_timeout(120_000)
    try:
        page.goto(f"{lab.url}lab/tree/04_relay_builds.ipynb?reset")
        page.locator("a[href*='glossary.md'], a[data-path$='glossary.md']", has_text="virtual machine").first.click()
        page.wait_for_function(IN_SIGHT, polling=500)
    finally:
        page.close()
