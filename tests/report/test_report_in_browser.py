"""The report in a real browser: it opens, asks for nothing, and its controls work."""

import itertools
import shutil

import pytest

from protail.report import write_report
from reference.patience import PATIENCE
from reference.reported import NAMES, reported_data

pytest.importorskip("plotly")
pytest.importorskip("jinja2")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)
DESKTOP, PHONE = (1280, 900), (390, 844)
NO_NAME = """
    [...document.querySelectorAll('main button, main select, main input, nav a')].filter(
        each => each.tabIndex < 0
            || !(each.ariaLabel || each.textContent.trim() || each.labels?.length)
    ).length
"""
FIRST_PROTOTYPE = """() => {
    const plot = document.querySelector('#prototype-map'), box = plot.getBoundingClientRect();
    const { xaxis, yaxis } = plot._fullLayout, { x, y } = plot.data[1];
    return [
        box.left + xaxis._offset + xaxis.c2p(x[0]), box.top + yaxis._offset + yaxis.c2p(y[0])
    ];
}"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Open the report; at the end nothing must have gone wrong or been asked for."""
    address = write_report(
        reported_data(), tmp_path_factory.mktemp("browser") / "report.html"
    ).as_uri()
    faults = []

    def asked(request):
        if not request.url.startswith(("file:", "data:")):
            faults.append(request.url)

    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_it(width, height, scheme="light"):
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                has_touch=width < 600,
                reduced_motion="reduce",
            )
            page.set_default_timeout(1000 * PATIENCE)
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("dialog", lambda dialog: faults.append("a name was run as a script"))
            page.on("request", asked)
            page.goto(address)
            page.locator("html[data-ready=true]").wait_for()
            return page

        yield open_it
        browser.close()
    assert faults == []


@pytest.fixture(scope="module")
def page(opened):
    """One page for all that clicks."""
    return opened(*DESKTOP)


def lightness(page, what):
    colour = page.evaluate(f"getComputedStyle(document.body).{what}.match(/[\\d.]+/g)")
    return sum(w * float(c) / 255 for w, c in zip((0.21, 0.72, 0.07), colour, strict=False))


@pytest.mark.parametrize(
    ("size", "first", "then"), [(DESKTOP, "light", "dark"), (PHONE, "dark", "light")]
)
def test_it_fits_and_can_be_read(size, first, then, opened):
    page = opened(*size, first)
    for scheme in (first, then):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.locator(f"html[data-theme={scheme}]").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.locator(".plot .main-svg").count() >= 6
        ink, paper = lightness(page, "color"), lightness(page, "backgroundColor")
        assert (ink > 0.7 and paper < 0.2) if scheme == "dark" else (ink < 0.2 and paper > 0.7)
    # Photos are there, whole, and named.
    whole = "[...document.querySelectorAll('main img')].map(i => i.naturalWidth > 0 && !!i.alt)"
    photos = page.evaluate(whole)
    assert len(photos) > 10
    assert all(photos)
    page.close()


def test_the_switch_changes_all_colours_and_is_kept(page):
    drawn = "getComputedStyle(document.querySelector('.plot text')).fill"
    before = page.evaluate(drawn)
    page.get_by_role("button", name="Switch to dark colours").click()
    assert lightness(page, "backgroundColor") < 0.2
    assert page.evaluate(drawn) != before
    page.reload()
    page.locator("html[data-ready=true][data-theme=dark]").wait_for()
    page.get_by_role("button", name="Switch to light colours").click()
    assert lightness(page, "backgroundColor") > 0.7


def test_a_class_is_chosen_on_the_map_and_its_photos_shown(page):
    page.locator("#map-class").select_option(label=NAMES[1])
    strip = page.locator("#map-examples")
    assert strip.locator("figure").count() == 13  # its prototype and 12 held-out examples
    opacity = page.evaluate("document.querySelector('#prototype-map').data[1].marker.opacity")
    assert [each > 0.5 for each in opacity].count(True) == 1
    page.locator("#map-class").select_option(value="")
    assert strip.is_hidden()


def test_the_map_is_zoomed_by_buttons(page):
    def wide():
        low, high = page.evaluate("document.querySelector('#prototype-map').layout.xaxis.range")
        return high - low

    before = wide()
    page.get_by_role("button", name="Zoom in").click()
    assert wide() == pytest.approx(0.7 * before)
    page.get_by_role("button", name="Reset").click()
    assert wide() == pytest.approx(before, rel=0.05)


def test_pointing_at_a_mark_shows_its_photo(page):
    page.locator("#prototype-map").scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # what hides it when scrolled is done
    x, y = page.evaluate(FIRST_PROTOTYPE)
    page.mouse.move(x - 60, y)
    page.mouse.move(x, y, steps=4)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert tip.locator("b").inner_text()
    assert tip.locator("img").get_attribute("src").startswith("data:image/jpeg")
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_tables_are_sorted_and_searched(page):
    table = page.locator("#table-classes")
    page.get_by_text("Every class, the largest first").first.click()

    def sizes():
        return [int(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]

    assert sizes() == [120, 40, 25, 12, 6, 3]
    heading = table.get_by_role("button", name="Training")
    heading.click()
    assert table.locator("th[aria-sort=descending]").count() == 1
    heading.press("Enter")
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("Training")
    assert sizes() == [3, 6, 12, 25, 40, 120]
    page.get_by_text("Examples that are least like any class").first.click()
    page.locator("[data-filter=table-novelties]").fill("#51")
    assert page.locator("#table-novelties tbody tr:visible").count() == 1


def test_a_command_is_copied_or_selected(page):
    button = page.locator("[data-copy]").first
    button.click()
    page.locator("[data-copy]", has_text="ed").first.wait_for()  # copied, or selected
    assert page.locator(".command code").first.inner_text() == "protail report 'my model' <x>"


def test_the_keyboard_and_a_screen_reader_are_enough(page):
    page.reload()
    page.locator("html[data-ready=true]").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    assert page.evaluate(NO_NAME) == 0
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for chart in page.locator("[role=img].plot").all():
        assert len(chart.get_attribute("aria-label")) > 40
    ids = page.evaluate("[...document.querySelectorAll('body [id]:not(svg *)')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    targets = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert set(targets) <= set(ids)
