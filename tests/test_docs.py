"""What README and docs show is what comes out: every block of every page is run or checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import product
from operator import attrgetter
from pathlib import Path
from threading import Thread

import pytest

from protail.models.backbones.installed import LITE_PACKAGES
from protail.recipes import recipe_names
from reference.apart import run_apart
from reference.documents import (
    PAGES,
    ROOT,
    Reader,
    indented_code,
    rewrite,
    runnable,
    same_output,
    write_own_files,
)
from reference.patience import PATIENCE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DOCS = ROOT / "docs"
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
_WHOLE_MODULE = re.compile(r"^::: (\S+)$(?!\n +options)", re.MULTILINE)  # options choose a part
MODULES = {
    module: page
    for page in sorted((DOCS / "api").glob("*.md"))
    for module in _WHOLE_MODULE.findall(page.read_text(encoding="utf-8"))
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to type in, and a console of the width that the pages show."""
    import rich
    from threadpoolctl import threadpool_limits

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(rich, "_console", None)
    # Small matrices: threads only get in each other's way, here and in processes that begin here.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with threadpool_limits(1):
        yield tmp_path


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_does_what_the_page_shows(page, folder):
    if page.name == "README.md":
        write_own_files(folder)
    # In a process of its own: what other tests have imported must not change what a page prints.
    code, printed = run_apart(Reader(page, folder).read, (), folder, dict(os.environ))
    assert code == 0, printed


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_code_hides_outside_of_fences(page):
    assert indented_code(page) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_images_lead_somewhere(page):
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://", "#"))
        and not (page.parent / target.split("#")[0]).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_and_files_that_a_page_writes_exist(page):
    text = page.read_text(encoding="utf-8")
    for name in set(re.findall(r"(?<![\w./])protail(?:_paper)?(?:\.\w+)+", text)):
        place, _, last = name.rpartition(".")
        try:
            module = import_module(place)
        except ModuleNotFoundError:  # an attribute of a class
            module = attrgetter(place.rpartition(".")[2])(import_module(place.rpartition(".")[0]))
        assert hasattr(module, last) or import_module(name), name
    for path in set(re.findall(r"`((?:\w+/)+\w+\.py)`", text)):
        assert any((ROOT / base / path).exists() for base in ("", "src", "src/protail")), path


def commands(command, words="protail"):
    """Give the words of a command and of every command below it."""
    below = getattr(command, "commands", {})
    return [words] + [w for name in below for w in commands(below[name], f"{words} {name}")]


def test_the_commands_page_shows_the_help_of_every_command():
    from typer.main import get_command

    from protail.cli.app import app

    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    every = commands(get_command(app))
    assert {"protail fit", "protail data stats"} <= set(every)
    assert [words for words in every if f"$ {words} --help\n" not in text] == []


def test_the_navigation_names_every_page():
    yaml = pytest.importorskip("yaml")

    def pages(entry):
        children = entry.values() if isinstance(entry, dict) else entry
        if isinstance(entry, str):
            return [entry]
        return [page for child in children for page in pages(child)]

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("!ENV ", "")
    named = pages(yaml.safe_load(text)["nav"])
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def public_names(module):
    """Name what a module offers: what it says it does, else the classes and functions it has."""
    everything = {name: thing for name, thing in vars(module).items() if callable(thing)}
    own = [
        name
        for name, thing in everything.items()
        if not name.startswith("_") and thing.__module__ == module.__name__
    ]
    listed = getattr(module, "__all__", own)
    return {name for name in listed if callable(getattr(module, name))}


@pytest.mark.parametrize("name", MODULES)
def test_the_reference_has_every_public_name(name, site):
    module = import_module(name)
    html = (site / "api" / MODULES[name].stem / "index.html").read_text(encoding="utf-8")
    # Where a package has a function and a file of one name, the page shows it in its file.
    places = {one: {name, getattr(module, one).__module__} for one in public_names(module)}
    assert places
    missing = [
        one
        for one, there in places.items()
        if not any(f'id="{place}.{one}"' in html for place in there)
    ]
    assert missing == []


def test_every_package_has_a_page():
    import protail

    folder = Path(protail.__file__).parent
    packages = {
        ".".join(("protail", *place.parent.relative_to(folder).parts))
        for place in folder.rglob("__init__.py")
        if not place.parent.name.startswith("_")
    }
    assert packages - set(MODULES) == {
        "protail.cli",
        "protail.cli.service",
        "protail.estimator",
    }


def test_the_methods_page_has_every_recipe_and_names_that_exist():
    tables = "".join(re.findall(r"(?m)^\|.*$", (DOCS / "methods.md").read_text(encoding="utf-8")))
    assert [name for name in recipe_names() if f"`{name}`" not in tables] == []
    packages = {"heads": "models.heads", "augment": "data.augment"}
    found = re.findall(r"\b(losses|heads|methods|data|augment|training)\.(\w+)", tables)
    assert found
    for package, name in found:
        assert hasattr(import_module(f"protail.{packages.get(package, package)}"), name), name


def test_the_site_asks_nobody_else_for_anything(site):
    for page in ("index.html", "tutorial/index.html"):
        html = (site / page).read_text(encoding="utf-8")
        assert re.findall(r'(?:src|rel="stylesheet" href)="https?://[^"]*"', html) == []


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("many 54.2 %", "many 54.6 %"),
        ("AUROC 0.825", "AUROC 0.831"),
        ("1,186 rows predicted in 1 s", "1,186 rows predicted in 2 min"),
        ("| a |  9.5 |\n|---|------|", "| a | 10.0 |\n|---|-------|"),
        ("first\n...\nlast", "first\nsecond\nthird\nlast"),
        ("first\n...", "first\nsecond"),
    ],
)
def test_what_may_differ(shown, real):
    same_output(shown.splitlines(), real, "here")


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("many 54.2 %", "few 54.2 %"),
        ("many 54.2 %", "many 57.2 %"),
        ("AUROC 0.825", "AUROC 0.925"),
        ("many (3)", "many (4)"),
        ("291 rows", "391 rows"),
        ("one\ntwo", "one"),
        ("one", "one\ntwo"),
        ("first\n...\nlast", "first\nsecond"),
    ],
)
def test_what_may_not(shown, real):
    with pytest.raises(AssertionError, match="here"):
        same_output(shown.splitlines(), real, "here")


def test_help_must_agree_exactly():
    same_output(["default: 0.2"], "default: 0.2", "here", exact=True)
    with pytest.raises(AssertionError, match="exactly"):
        same_output(["default: 0.2"], "default: 0.3", "here", exact=True)


@pytest.mark.parametrize(
    "line", ["make nothing", "pip install '.[nothing]'", "pip install torch", "rm -rf model"]
)
def test_a_line_nobody_can_check_is_an_error(line):
    with pytest.raises(AssertionError):
        runnable(line)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```\nx\n```\n", "no language"),
        ("```json\n{\n```\n", "Expecting"),
        ("```python\nprint(1)\n```\n", "not shown"),
        ("```python\nprint(1)\n```\n\nwords\n\n```text\n1\n```\n", "must follow"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "came out"),
        ("```python\nunknown\n```\n", "unknown"),
        ("```console\n$ ls nowhere\n```\n", "ends with"),
        ("```console\n$ python -c 'print(3)'\n4\n```\n", "came out"),
        ("```console\n$ python -c 'exit(3)'\n$ echo $?\n4\n```\n", "page.md"),
        ("```python\nx = 1\n", "no end"),
    ],
)
def test_a_page_that_lies_is_found(text, complaint, folder, monkeypatch):
    monkeypatch.setattr("reference.documents.ROOT", folder)
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match=complaint):
        Reader(page, folder).read()


def test_a_page_can_be_written_again(folder, monkeypatch):
    monkeypatch.setattr("reference.documents.ROOT", folder)
    page = folder / "page.md"
    page.write_text("```console\n$ python -c 'print(3)'\n4\n5\n$ python -c 'print(6)'\n```\n")
    assert rewrite(page) == 2
    shown = ["$ python -c 'print(3)'", "3", "$ python -c 'print(6)'", "6"]
    assert page.read_text().splitlines()[1:-1] == shown
    assert rewrite(page) == 0


def _extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["optional-dependencies"]


def test_the_readme_names_the_extras_there_are():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Extras")[2]
    sentence = next(line for line in section.splitlines() if "by job" in line)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(_extras())


@pytest.mark.parametrize("extra", sorted({*_extras()} - {"all", "dev", "offline"}))
def test_what_an_extra_brings_is_used(extra):
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for requirement in _extras()[extra]:
        package = re.match(r"[\w-]+", requirement)[0]
        name = {"pillow": "PIL"}.get(package, package.replace("-", "_"))
        assert re.search(rf"(from|import|import_module\(\"|imported\(\") ?{name}\b", source), (
            package
        )


def test_the_weights_that_an_extra_brings_are_known():
    packages = {package for package, _ in LITE_PACKAGES.values()}
    assert {requirement.partition("==")[0] for requirement in _extras()["offline"]} <= packages


@pytest.fixture(scope="module")
def served(site):
    """Serve the site to this machine."""
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Answers without telling the terminal."""

    def log_message(self, *_: object) -> None:
        """Keep silent."""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_the_tutorial_on_photos_in_a_browser(served):
    """On a desk and on a phone, light and dark: nothing wrong, nothing fetched, all in sight."""
    playwright = pytest.importorskip("playwright.sync_api")
    faults = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for (width, height), scheme in product([(1280, 900), (390, 844)], ["light", "dark"]):
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page.set_default_timeout(1000 * PATIENCE)
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "request",
                lambda asked: asked.url.startswith((served, "data:")) or faults.append(asked.url),
            )
            page.goto(f"{served}/tutorial-photos/", wait_until="networkidle")
            assert page.locator("article h2").count() >= 8
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for picture in page.locator("article img").all():
                picture.scroll_into_view_if_needed()
                assert picture.evaluate("each => each.decode().then(() => each.naturalWidth)") > 0
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            lightness = max(map(float, re.findall(r"[\d.]+", paper)[:3]))
            assert (lightness > 200) == (scheme == "light"), paper
            page.close()
        browser.close()
    assert faults == []
