"""`run.whatif(...)`: the changes that pay, and a run replayed with changes."""

from __future__ import annotations

import pytest

from commtrace.errors import UsageError
from commtrace.views.run import Run, load
from commtrace.views.table import Table
from tests.commtrace.analyze.replaying import barrier_trace

REMOVED = "remove where kind=barrier"


@pytest.fixture(scope="module")
def run() -> Run:
    found = load(barrier_trace())
    assert isinstance(found, Run)
    return found


def test_without_a_change_it_is_the_table_with_units(run: Run) -> None:
    table = run.whatif()
    assert isinstance(table, Table)
    (row,) = table.index[table["text"] == "remove where finding=2"]
    assert table["saved_ns"][row] == 10_000_000
    assert table.shown()["saved_ns"][row] == "10 ms"


def test_an_answer_has_the_numbers(run: Run) -> None:
    found = run.whatif(REMOVED)
    assert found.changes == (REMOVED,)
    assert (found.step_ns, found.error_ns) == (100_000_000, 0)
    assert (found.replayed_step_ns, found.saved_ns) == (
        (90_000_000, 90_000_000),
        (10_000_000, 10_000_000),
    )
    effects = found.effects()
    assert isinstance(effects, Table)
    assert effects.shown()["saved_ns"].tolist()[:2] == ["10 ms", "10 ms"]


def test_a_range_has_two_ends(run: Run) -> None:
    found = run.whatif("bandwidth *2 where kind=all_reduce")
    least, most = found.replayed_step_ns
    assert least < most == found.step_ns
    assert found.saved_ns == (0, most - least)
    assert "saves at most " in repr(found)


def test_every_text_of_the_table_is_a_change(run: Run) -> None:
    for text, saved, most in run.whatif()[["text", "saved_ns", "most_saved_ns"]].values.tolist():
        assert run.whatif(text).saved_ns == pytest.approx((saved, most), abs=1), text


def test_the_replayed_run_has_all_views_and_says_that_it_is_replayed(run: Run) -> None:
    found = run.whatif(REMOVED)
    replayed = found.run
    assert isinstance(replayed, Run)
    assert set(replayed.comm["kind"]) == {"all_reduce"}
    note = f"Replayed, not recorded: with {REMOVED}."
    assert note in repr(replayed)
    assert note in (replayed._repr_html_() or "")
    assert note not in repr(run)
    for each in (replayed.timeline(), replayed.flame()):
        assert list(each.data)  # type: ignore[arg-type] - a tuple of traces
        assert each.layout.title.subtitle.text == note  # type: ignore[union-attr] - a layout
    assert run.timeline().layout.title.subtitle.text is None  # type: ignore[union-attr] - a layout
    assert replayed.whatif("balance").step_ns == 90_000_000
    assert found.run is replayed


def test_it_displays_itself_as_text_and_as_html(run: Run) -> None:
    found = run.whatif(REMOVED, "shrink *0")
    lines = repr(found).splitlines()
    assert lines[:3] == [REMOVED, "shrink *0", "step 100 ms -> 70 ms  saves 30 ms (30%)"]
    assert lines[3].split() == ["before", "after", "saved"]
    shown = found._repr_html_()
    assert "<b>step 100 ms -&gt; 70 ms</b> saves 30 ms (30%)" in shown
    assert "<code>remove where kind=barrier</code>" in shown
    assert "then on the critical path: host work" in shown
    assert "dependencies are inferred" in shown


def test_names_of_a_trace_are_text_in_html() -> None:
    hostile = "<img src=x onerror=hacked()>"
    found = load(barrier_trace()).whatif(f"remove where kind!={hostile}")
    assert hostile not in found._repr_html_()
    assert "&lt;img" in found._repr_html_()


def test_a_change_that_is_none_is_an_error(run: Run) -> None:
    with pytest.raises(UsageError, match="no change 'dance'"):
        run.whatif("dance")
