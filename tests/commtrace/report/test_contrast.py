"""Every text of a page has WCAG level AA contrast with its background, in both themes."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from commtrace.analyze import load
from commtrace.figures.theme import DARK, LIGHT, Theme, readable_on
from commtrace.report import write_diff
from commtrace.report.picture import write_flame, write_timeline
from commtrace.report.style import page_colours
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.figures.test_theme import contrast
from tests.commtrace.report.browsing import Open
from tests.commtrace.synthetic import write_synthetic_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

AA, AA_LARGE = 4.5, 3.0

GROUNDS = ("surface", "back", "soft")
TEXTS = ("ink", "muted", "accent-ink", "good", "bad")

MEASURE = """() => {
  const LEFT_OUT = "script, style, noscript, option, :disabled, .heatmap-label";
  const channels = (text) => {
    const found = text.match(/-?[\\d.]+(?:e-?\\d+)?/g).map(Number);
    return text.startsWith("color(srgb") ? [...found.slice(0, 3).map((v) => 255 * v), found[3] ?? 1]
      : [...found.slice(0, 3), found[3] ?? 1];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
  const ground = (each) => {
    const layers = [];
    for (let at = each; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, colour) => over(colour, under), [255, 255, 255]);
  };
  const luminance = (rgb) => rgb.map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + [0.2126, 0.7152, 0.0722][i] * v, 0);
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const opacity = (each) => {
    let all = 1;
    for (let at = each; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity);
    return all;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const each = node.parentElement;
    if (!node.textContent.trim() || each.closest(LEFT_OUT)) continue;
    if (!each.getClientRects().length || !each.checkVisibility({ opacityProperty: true })) continue;
    const style = getComputedStyle(each);
    const shape = each.closest(".slice, .point")?.querySelector("path");
    const isDrawn = each.ownerSVGElement !== null && each.namespaceURI.endsWith("svg");
    const under = shape ? channels(getComputedStyle(shape).fill).slice(0, 3) : ground(each);
    const colour = channels(isDrawn ? style.fill : style.color);
    colour[3] *= opacity(each);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    found.push([node.textContent.trim().slice(0, 40), ratio(over(colour, under), under), isLarge]);
  }
  return found;
}"""


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_each_text_colour_is_readable_on_each_ground(theme: Theme) -> None:
    colours = page_colours(theme)
    pairs = {(text, ground): contrast(colours[text], colours[ground])
             for text, ground in product(TEXTS, GROUNDS)}  # fmt: skip
    pairs["warn-ink", "warn-back"] = contrast(colours["warn-ink"], colours["warn-back"])
    for name, colour in {**theme.kinds, **theme.phases, **theme.uses}.items():
        pairs[name, "its label"] = contrast(readable_on(colour), colour)
    for colour in theme.scale:
        pairs[colour, "its label"] = contrast(readable_on(colour), colour)
    assert {pair: ratio for pair, ratio in pairs.items() if ratio < AA} == {}


def test_no_text_of_the_style_sheet_has_another_colour() -> None:
    source = (Path(__file__).parents[3] / "commtrace/report/templates/page.css").read_text()
    used = set(re.findall(r"(?<![-\w])color:\s*([^;]+);", source))
    names = {f"var(--{name})" for name in (*TEXTS, "warn-ink")}
    assert used <= names | {"inherit"}
    assert not re.search(r"opacity:\s*0?\.\d+", source)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_text_that_is_shown_is_readable(
    open_page: Open, training: Path, scheme: str, width: int
) -> None:
    page = open_page(training, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    page.click("#legend [data-kind=barrier]")
    page.click("#finding-1 [data-evidence]")
    page.click("#tab-by_module")
    page.locator("#table tbody tr", has_text="layers.0").click()
    page.click("#tab-calls")
    page.locator("#table tbody tr").nth(1).click()
    page.click("#flame-blocks summary", force=True)
    page.wait_for_timeout(300)
    assert too_faint(page, least=200) == {}


@pytest.fixture(scope="module")
def diff_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that is compared with two others: a deeper run, and a run of more ranks."""
    folder = tmp_path_factory.mktemp("diff")
    runs = [
        load(write_synthetic_run(folder / f"{number}.json", **given))
        for number, given in enumerate(({}, {"num_layers": 3}, {"world_size": 8}))
    ]
    return write_diff(runs, folder / "diff.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_text_of_the_page_that_compares_runs_is_readable(
    open_page: Open, diff_page: Path, scheme: str, width: int
) -> None:
    page = open_page(diff_page, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    page.get_by_role("button", name="Calls").click()
    page.wait_for_timeout(300)
    assert too_faint(page, least=60) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("write", [write_flame, write_timeline])
def test_every_text_of_the_page_of_a_picture_is_readable(
    open_page: Open, tmp_path: Path, scheme: str, write: Callable[..., object]
) -> None:
    path = tmp_path / "picture.html"
    write(load(training_trace()), path)
    page = open_page(path, color_scheme=scheme).page
    page.wait_for_timeout(300)
    assert too_faint(page, least=10) == {}


def too_faint(page: Page, least: int) -> dict[str, float]:
    """The texts of a page below AA with their contrast; the page shows at least that many texts."""
    found = page.evaluate(MEASURE)
    assert len(found) >= least
    return {
        text: round(ratio, 2)
        for text, ratio, is_large in found
        if ratio < (AA_LARGE if is_large else AA)
    }
