"""A check of a static site, without a network: no dead link, and nothing that a page loads from another host.

`python -m tools.links FOLDER` lists what is wrong and fails if there is anything.
"""

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser loads by itself; and of <link>, the relations for which it does.
_LOADS = ("src", "srcset", "poster", "data")
_FETCHED = {"stylesheet", "icon", "manifest", "modulepreload"}
_FETCHED |= {"preload", "prefetch", "preconnect", "dns-prefetch"}
_FAR = re.compile(r"(?:https?:)?//")
_OTHER = re.compile(r"(?:https?:)?//|[\w+.-]+:")  # another host or, like mailto: and data:, another scheme


class Page(HTMLParser):
    """The addresses of an HTML page: those that lead on, those that are loaded, and its own fragments."""

    def __init__(self, text: str):
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.fragments = {"", "top"}
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Take the addresses and fragments of a tag."""
        values = dict(attrs)
        self._style = tag == "style"
        self.fragments |= {values[key] for key in ("id", "name") if values.get(key)}
        self.loads += [values[key] for key in _LOADS if values.get(key) and tag != "a"]
        self.loads += styled(values.get("style") or "")
        if address := values.get("href"):
            loaded = tag == "link" and _FETCHED & set((values.get("rel") or "").split())
            (self.loads if loaded else self.leads).append(address)

    def handle_endtag(self, tag: str) -> None:
        """See where a style sheet ends."""
        self._style = False

    def handle_data(self, data: str) -> None:
        """Take the addresses in a style sheet inside the page."""
        if self._style:
            self.loads += styled(data)


def styled(text: str) -> list[str]:
    """List the addresses that a style sheet loads."""
    return re.findall(r"""url\(\s*["']?([^"')]+)""", text) + re.findall(r"""@import\s+["']([^"']+)""", text)


def problems(site: Path) -> list[str]:
    """List the dead links of a site and what it loads from other hosts.

    Args:
        site: The folder of the built site.

    Raises:
        FileNotFoundError: The folder has no page.
    """
    pages = sorted(site.rglob("*.html"))
    if not pages:
        raise FileNotFoundError(f"{site}: expected the pages of a site, found none; run `make site`")
    read = cache(lambda path: Page(path.read_text(encoding="utf-8")))
    found = []
    for path in pages:
        here = path.relative_to(site)
        for address in read(path).loads:
            if _FAR.match(address):
                found.append(f"{here}: loads {address} from another host")
        for address in dict.fromkeys([*read(path).leads, *read(path).loads]):
            if _OTHER.match(address):
                continue
            target = _target(site, path, address)
            fragment = unquote(urlsplit(address).fragment)
            if not target.exists():
                found.append(f"{here}: {address} leads to no file")
            elif target.suffix == ".html" and fragment not in read(target).fragments:
                found.append(f"{here}: {address} leads to no heading")
    for path in sorted(site.rglob("*.css")):
        far = [address for address in styled(path.read_text(encoding="utf-8")) if _FAR.match(address)]
        found += [f"{path.relative_to(site)}: loads {address} from another host" for address in far]
    return found


def _target(site: Path, page: Path, address: str) -> Path:
    """Return the file that an address on a page means."""
    path = unquote(urlsplit(address).path)
    if not path:
        return page
    target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
    target = target.resolve()
    return target / "index.html" if target.is_dir() else target


def main() -> None:
    """Check the folder that the command line names."""
    site = Path(sys.argv[1])
    found = problems(site)
    print(*found, sep="\n", end="\n" * bool(found))
    if found:
        sys.exit(f"{site}: {len(found)} problems")
    print(f"{site}: {len(list(site.rglob('*.html')))} pages, no dead link, nothing loaded from another host")


if __name__ == "__main__":
    main()
