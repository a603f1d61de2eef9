"""A check of a static site, without a network: no dead link, and nothing that a page loads from another host.

`python -m tools.links FOLDER` lists what is wrong and fails if there is anything.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser loads by itself; and of <link>, the relations for which it does.
_LOADS = ("src", "srcset", "poster", "data")
_FETCHED = {
    "stylesheet",
    "icon",
    "manifest",
    "modulepreload",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
}


class Page(HTMLParser):
    """The addresses of an HTML page: those that lead on, those that are loaded, and its own fragments."""

    def __init__(self, text: str):
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.fragments = {"", "top"}
        self.feed(text)
        for style in re.findall(r'<style.*?</style>|\sstyle="[^"]*"', text, re.S):
            self.loads += styled(style)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        """Take the addresses and fragments of a tag."""
        values = {key: value for key, value in attrs if value}
        self.fragments |= {values[key] for key in ("id", "name") if key in values}
        self.loads += [values[key] for key in _LOADS if key in values]
        if "href" in values:
            loaded = tag == "link" and _FETCHED & {*values.get("rel", "").split()}
            (self.loads if loaded else self.leads).append(values["href"])


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
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        raise FileNotFoundError(f"{site}: expected the pages of a site, found none; run `make site`")
    loads = {path: page.loads for path, page in pages.items()}
    loads |= {path: styled(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.css"))}
    found = []
    for path, addresses in loads.items():
        here = path.relative_to(site)
        found += [f"{here}: loads {each} from another host" for each in addresses if urlsplit(each).netloc]
        for address in dict.fromkeys([*pages[path].leads, *addresses] if path in pages else []):
            parts = urlsplit(address)
            if parts.netloc or parts.scheme:  # another host, or another scheme, such as mailto: and data:
                continue
            target = _target(site, path, unquote(parts.path))
            if not target.exists():
                found.append(f"{here}: {address} leads to no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].fragments:
                found.append(f"{here}: {address} leads to no heading")
    return found


def _target(site: Path, page: Path, path: str) -> Path:
    """Return the file that a path on a page means."""
    if not path:
        return page
    target = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    return target / "index.html" if target.is_dir() else target


def main() -> None:
    """Check the folder that the command line names."""
    site = Path(sys.argv[1])
    found = problems(site)
    if found:
        sys.exit("\n".join([*found, f"{site}: {len(found)} problems"]))
    print(f"{site}: {len(list(site.rglob('*.html')))} pages, no dead link, nothing loaded from another host")


if __name__ == "__main__":
    main()
