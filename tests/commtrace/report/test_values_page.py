"""The page that compares values, checked as text and in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from commtrace.report import values_page, write_comparison
from dtensor_core import Shard
from tests.commtrace.analyze.values.rows import held_by_one, sharded
from tests.commtrace.report.browsing import Open
from tests.commtrace.report.test_contrast import too_faint
from tests.commtrace.report.test_picture import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Page

LABELS = ("one.json", "four.json")
Values = list[tuple[dict[str, Any], torch.Tensor]]


def values(
    num_layers: int = 3, num_steps: int = 4, factor: float = 1.0, prefix: str = ""
) -> Values:
    """Outputs of layers and their gradients; from step 2 on, gradients of layer 1 are off."""
    generator = torch.Generator().manual_seed(0)
    made: Values = []
    for step in range(num_steps):
        for phase, role in (("forward", "output"), ("backward", "output_gradient")):
            for layer in range(num_layers):
                value = torch.randn(8, 4, generator=generator)
                if step >= 2 and layer == 1 and phase == "backward":
                    value = value * factor
                module = f"{prefix}layers.{layer}"
                columns = {"module": module, "step": step, "phase": phase, "role": role}
                made.append((columns, value))
    return made


def written(path: Path, left: Frames, right: Frames, labels: tuple[str, ...] = LABELS) -> Path:
    return write_comparison(compare(left, right), left, right, path, labels=labels)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose gradients are four times what they should be."""
    right = held_by_one(values())
    other = sharded(values(factor=4.0), [Shard(0)], {"tp": 4})
    return written(tmp_path_factory.mktemp("page") / "values.html", right, other)


def opened(open_page: Open, path: Path, errors: list[str], **look: Any) -> Page:
    """Open a page, and collect all that it reports in `errors`."""
    return open_page(
        path, messages=errors, **({"viewport": {"width": 1400, "height": 900}} | look)
    ).page


def rows_of(page: Page) -> list[list[str]]:
    lines = page.locator("#tensors tbody tr")
    return [lines.nth(n).locator("td").all_inner_texts() for n in range(lines.count())]


def test_the_verdict_comes_first_with_its_evidence(open_page: Open, wrong: Path) -> None:
    errors: list[str] = []
    page = opened(open_page, wrong, errors)
    assert page.locator("#verdict h2").inner_text() == (
        "Output gradient of layers.1 is wrong in four.json: it is 4 times what it should be: 4 is "
        "the size of mesh axis tp, as if reduced over it once too often"
    )
    facts = dict(
        zip(
            page.locator("#verdict dt").all_inner_texts(),
            page.locator("#verdict dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["where"] == "step 2, backward"
    assert facts["last tensor that agrees"] == "output gradient of layers.0"
    sides = page.locator("#sides tbody tr").first.locator("th, td").all_inner_texts()
    assert sides == ["layout", "on one rank", "tp:S(0)"]
    # The wrong tensors are listed, and the first of them is framed in the map.
    assert [row[:3] for row in rows_of(page)] == [
        ["2", "output gradient of layers.1", "wrong"],
        ["3", "output gradient of layers.1", "wrong"],
    ]
    assert errors == []


def test_a_cell_shows_its_tensors(open_page: Open, wrong: Path) -> None:
    errors: list[str] = []
    page = opened(open_page, wrong, errors)
    page.locator("#map").scroll_into_view_if_needed()
    where = page.evaluate(
        "(() => { const { xaxis, yaxis } = document.getElementById('map')._fullLayout;"
        " const box = document.querySelector('#map .nsewdrag').getBoundingClientRect();"
        " return [box.left + xaxis.d2p(3), box.top + yaxis.d2p(6)]; })()"
    )
    page.mouse.move(where[0] - 1, where[1])
    page.mouse.move(*where)
    label = page.locator("#map .hoverlayer .hovertext").first
    label.wait_for()
    assert "layers.1" in (label.text_content() or "")
    assert "first run on one rank, float32, norm" in (label.text_content() or "")
    page.mouse.down()
    page.mouse.up()
    page.locator("#shown", has_text="step 3").wait_for()
    assert page.locator("#shown").inner_text() == "step 3: 1 tensor, 1 wrong"
    assert [row[:3] for row in rows_of(page)] == [["3", "output gradient of layers.1", "wrong"]]
    page.select_option("#chosen", label="layers.2 (forward)")
    assert [row[:3] for row in rows_of(page)] == [
        [str(step), "output of layers.2", "agrees"] for step in range(4)
    ]
    assert errors == []


@pytest.mark.parametrize("width", [1400, 700, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_width_and_is_readable_in_both_themes(
    open_page: Open, wrong: Path, width: int, scheme: str
) -> None:
    errors: list[str] = []
    look = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    page = opened(open_page, wrong, errors, **look)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert too_faint(page, least=40) == {}
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme
    assert errors == []


def test_names_of_a_trace_are_shown_and_not_executed(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    right, other = (
        held_by_one(values(factor=factor, prefix=f"{HOSTILE}\u202e.")) for factor in (1.0, 3.0)
    )
    page = opened(
        open_page, written(tmp_path / "x.html", right, other, (HOSTILE, f"\u202e{HOSTILE}")), errors
    )
    assert page.evaluate("window.bad") is None
    assert HOSTILE in page.locator("#verdict h2").inner_text()
    assert HOSTILE in page.locator("#tensors").inner_text()
    assert "\u202e" not in page.locator("main").inner_text()
    assert r"\u202e" in page.locator("#tensors").inner_text()
    assert errors == []


def test_runs_that_agree(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    right = held_by_one(values())
    page = opened(open_page, written(tmp_path / "x.html", right, right), errors)
    assert page.locator("#verdict.right h2").inner_text() == "The runs agree in 24 tensors"
    assert page.locator("#rest").inner_text() == (
        "No tensor is wrong. Choose a module to see its tensors."
    )
    assert errors == []


def test_the_page_of_a_long_run_is_of_bounded_size_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(values_page, "MOST_TENSORS", 500)
    right = held_by_one(values(num_layers=62, num_steps=81))
    path = written(tmp_path / "x.html", right, held_by_one(values(62, 81, factor=2.0)))
    assert path.stat().st_size < 3_500_000
    text = path.read_text("utf-8")
    assert "A column of the map stands for up to 2 adjacent steps." in text
    assert "Modules are joined with those around them: paths have 1 part at most." in text
    assert "Tables have 500 of 10,044 tensors, those that are furthest off in each cell" in text


def test_the_tensors_that_are_kept_are_the_furthest_off_of_every_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = held_by_one(values(num_steps=2))
    comparison = compare(right, right)
    pairs = comparison.pairs.assign(excess=[0.5, 0.1, 0.2, 0.3, 0.9, 0.8, *[0.0] * 6])
    cells = torch.tensor([0, 0, 1, 1, 1, 1, *[2] * 6]).numpy()
    monkeypatch.setattr(values_page, "MOST_TENSORS", 4)
    assert values_page._shown(pairs, cells) == [0, 4, 5, 6]
