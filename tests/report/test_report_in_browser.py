"""The report in a real browser: it opens, asks for nothing, and its controls work."""

import shutil

import pytest

from protail.report import write_report
from reference.reported import NAMES, reported_data

pytest.importorskip("plotly")
pytest.importorskip("jinja2")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)
LOOKS = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return write_report(reported_data(), folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def opened(browser, address):
    """Open the report; at the end nothing must have gone wrong or been asked for."""
    faults, contexts = [], []

    def open_it(width=1280, height=900, scheme="light"):
        size = {"width": width, "height": height}
        context = browser.new_context(
            viewport=size, color_scheme=scheme, has_touch=width < 600, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append("a class name was run as a script"))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:")) or faults.append(request.url)
            ),
        )
        page.goto(address)
        page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert faults == []


def luminance(page, selector, what):
    colour = page.evaluate(
        f"getComputedStyle(document.querySelector({selector!r})).{what}.match(/[\\d.]+/g)"
    )
    return sum(w * float(c) / 255 for w, c in zip((0.21, 0.72, 0.07), colour, strict=False))


@pytest.mark.parametrize(("width", "height", "scheme"), LOOKS)
def test_it_fits_and_can_be_read(width, height, scheme, opened):
    page = opened(width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".plot .main-svg").count() >= 6
    ink, paper = luminance(page, "body", "color"), luminance(page, "body", "backgroundColor")
    assert (ink > 0.7 and paper < 0.2) if scheme == "dark" else (ink < 0.2 and paper > 0.7)
    for box in page.locator("main button:visible, main select:visible").all():
        assert box.bounding_box()["height"] >= 24
    # Photos are there, whole, and named.
    assert page.evaluate(
        "[...document.querySelectorAll('main img')].every(i => i.naturalWidth > 0 && i.alt)"
    )
    assert page.locator("main img").count() > 10


def test_the_switch_changes_all_colours_and_is_kept(opened):
    page = opened()
    before = page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill")
    switch = page.get_by_role("button", name="Switch to dark colours")
    switch.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert luminance(page, "body", "backgroundColor") < 0.2
    assert page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill") != before
    page.reload()
    page.wait_for_function("document.documentElement.dataset.ready === 'true'")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_class_is_chosen_on_the_map_and_its_photos_shown(opened):
    page = opened()
    page.get_by_label("Class", exact=True).select_option(label=NAMES[0])
    strip = page.locator("#map-examples")
    assert strip.locator("figure").count() == 13  # its prototype and 12 held-out examples
    assert (
        page.evaluate(
            "document.querySelector('#prototype-map').data[1].marker.opacity.filter(o => o > .5).length"
        )
        == 1
    )
    span = "(r => r[1] - r[0])(document.querySelector('#prototype-map').layout.xaxis.range)"
    wide = page.evaluate(span)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function(f"{span} < {0.8 * wide}")
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Class", exact=True).select_option(value="")
    assert strip.is_hidden()


def test_pointing_at_a_mark_shows_its_photo(opened):
    page = opened()
    page.locator("#prototype-map").scroll_into_view_if_needed()
    place = page.evaluate(
        """() => {
          const plot = document.querySelector('#prototype-map'), box = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout, { x, y } = plot.data[1];
          return [box.left + xaxis._offset + xaxis.c2p(x[0]), box.top + yaxis._offset + yaxis.c2p(y[0])];
        }"""
    )
    page.mouse.move(*place)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert tip.locator("b").inner_text()
    assert tip.locator("img").get_attribute("src").startswith("data:image/jpeg")
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_tables_are_sorted_and_searched(opened):
    page = opened()
    table = page.locator("#table-classes")
    page.get_by_text("Every class, the largest first").click()
    sizes = lambda: [int(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]  # noqa: E731
    assert sizes() == [120, 40, 25, 12, 6, 3]
    heading = table.get_by_role("button", name="Training")
    heading.click()
    assert table.locator("th[aria-sort=descending]").count() == 1
    heading.press("Enter")
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("Training")
    assert sizes() == [3, 6, 12, 25, 40, 120]
    find = page.locator("[data-filter=table-novelties]")
    find.locator("xpath=ancestor::details").locator("summary").click()
    find.fill("#51")
    assert page.locator("#table-novelties tbody tr:visible").count() == 1


def test_the_keyboard_is_enough(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    # Whatever can be clicked can be reached, and has a name.
    nameless = page.evaluate(
        """[...document.querySelectorAll('main button, main select, main input, nav a')]
          .filter(e => e.tabIndex < 0 || !(e.ariaLabel || e.textContent || e.labels?.length).toString())
          .length"""
    )
    assert nameless == 0
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    ours = [each for each in ids if not each.startswith(("clip", "g", "legend", "topdefs"))]
    assert len(ours) == len(set(ours))
    charts = page.locator("[role=img].plot")
    for i in range(charts.count()):
        assert len(charts.nth(i).get_attribute("aria-label")) > 40
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert set(targets) <= set(ids)


def test_a_command_is_copied_or_selected(opened):
    page = opened()
    button = page.locator("[data-copy]").first
    button.click()
    page.wait_for_function(
        "/Copied|Selected/.test(document.querySelector('[data-copy]').textContent)"
    )
    assert page.locator(".command code").first.inner_text() == "protail report 'my model' <x>"
