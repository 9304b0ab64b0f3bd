"""The site of docs/: each page has a place in it, and on the built pages all links lead somewhere, without another host."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from tests.jobs.home import PROJECT

BUILDER = PROJECT / "setup" / "site" / "build.py"
PARTS = ["Tutorial", "Guide", "Reference", "Internals"]
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}


def places_in(entries):
    """Yield each page that the navigation names, in its order."""
    for entry in entries:
        for place in entry.values():
            yield from [place] if isinstance(place, str) else places_in(place)


def navigation():
    return tomllib.loads((PROJECT / "zensical.toml").read_text())["project"]["nav"]


def test_navigation_has_each_page_once():
    shown = [place for _, place in runpy.run_path(str(BUILDER))["pages"]()]
    assert sorted(places_in(navigation())) == sorted(shown)


def test_site_has_a_home_and_four_parts():
    assert [name for entry in navigation() for name in entry] == ["Home", *PARTS]


class Html(HTMLParser):
    """Ids of a page, addresses of its links, and of all that a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if (address := attributes.get(LOADED.get(tag, ""))) and attributes.get("rel") != "canonical":
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    if not (PROJECT / "var" / "site-tools" / "bin" / "zensical").exists():
        pytest.skip("Zensical is not installed: `make site` installs it, and then links of the built pages are checked")
    folder = tmp_path_factory.mktemp("built") / "site"
    result = subprocess.run([sys.executable, BUILDER, folder], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def built(site):
    """Each page of the site, by its file; the page of unknown addresses serves all folders, and is left out."""
    files = [file for file in site.rglob("*.html") if file.name != "404.html" and "reports" not in file.parts]
    return {file: Html(file.read_text()) for file in files}


def is_elsewhere(address):
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def problem_of(file, address, built):
    """Return why an address on a page leads nowhere; None if it leads somewhere."""
    parts = urlsplit(address)
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{file.name}: {address}: no such file"
    page = built.get(target)
    has_anchor = page is None or not parts.fragment or unquote(parts.fragment) in page.ids
    return None if has_anchor else f"{file.name}: {address}: no such heading"


@pytest.mark.slow
def test_links_and_pictures_lead_somewhere(built):
    addresses = {(file, address) for file, page in built.items() for address in [*page.links, *page.loaded]}
    near = [(file, address) for file, address in addresses if not is_elsewhere(address)]
    assert len(near) > 2000
    assert [problem for file, address in near if (problem := problem_of(file, address, built))] == []


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("#nowhere", "index.html: #nowhere: no such heading"),
        ("joins.html#nowhere", "index.html: joins.html#nowhere: no such heading"),
        ("nowhere.html", "index.html: nowhere.html: no such file"),
        ("../README.md", "index.html: ../README.md: no such file"),
        ("joins.html#interval-join", None),
    ],
)
def test_dead_links_are_seen(site, built, address, problem):
    assert problem_of(site / "index.html", address, built) == problem


def test_pages_load_nothing_from_other_hosts(site, built):
    assert {address for page in built.values() for address in page.loaded if is_elsewhere(address)} == set()
    styles = [file.read_text() for file in site.rglob("*.css")]
    assert styles
    assert [
        address for style in styles for address in re.findall(r"(?:url\(|@import )[\"']?(\w+://[^\"')]+)", style)
    ] == []


def test_every_page_can_be_reached_from_home(site, built):
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            near = [address for address in built[file].links if not is_elsewhere(address)]
            waiting += [
                target for address in near if (target := (file.parent / urlsplit(address).path).resolve()) in built
            ]
    assert reached == set(built)


SEARCH = """<script>
const until = (what) => new Promise(done => { const look = () => (v => v ? done(v) : setTimeout(look, 50))(what()); look() })
const dialog = () => [...document.querySelectorAll("*")].find(node => node.shadowRoot)?.shadowRoot
addEventListener("load", async () => {
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "k", code: "KeyK", ctrlKey: true, bubbles: true}))
  const field = await until(() => dialog()?.querySelector("input"))
  field.value = "interval join"
  field.dispatchEvent(new InputEvent("input", {bubbles: true}))
  const link = await until(() => [...dialog().querySelectorAll("a")].find(a => a.href.includes("joins.html")))
  document.title = "FOUND " + link.innerText
})
</script></body>"""


@pytest.mark.slow
def test_search_finds_sections_from_a_disk(site, tmp_path):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine: with it, the search of the site is tried")
    page = site / "searched.html"
    page.write_text((site / "index.html").read_text().replace("</body>", SEARCH))
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        f"--user-data-dir={tmp_path}",
    ]
    command = [program, *words, "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    page.unlink()
    assert "<title>FOUND Interval join" in shown
