"""The analyses of the demo's trace against plain loops over its rows."""

from __future__ import annotations

import pytest

from commtrace.analyze import CATALOG
from commtrace.analyze.findings import findings
from commtrace.tracefile import read_trace
from tests.commtrace.analyze.by_hand import NAMES, duration_of, measures_by, rows, waits_of
from tests.demo.conftest import Demo


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("by_kind", ("kind",)),
        ("by_phase", ("phase",)),
        ("by_group", ("group",)),
        ("by_source", ("source_file", "source_line", "source_function")),
    ],
)
def test_measures_agree_with_loops(demo: Demo, name: str, keys: tuple[str, ...]) -> None:
    wanted = measures_by(
        read_trace(demo.trace), lambda call: tuple(getattr(call, key) for key in keys)
    )
    table = CATALOG[name].function(demo.frames).to_dict("records")
    found = {tuple(row[key] for key in keys): row for row in table}
    assert found.keys() == wanted.keys()
    for key, measures in wanted.items():
        row = {measure: found[key][measure] for measure in NAMES}
        assert row == pytest.approx(measures, rel=1e-9, nan_ok=True)


def test_waits_agree_with_loops(demo: Demo) -> None:
    trace = read_trace(demo.trace)
    waits = [wait for wait in waits_of(trace) if wait is not None]
    states = CATALOG["wait_states"].function(demo.frames)
    assert waits
    assert states["num_calls"].sum() == len(waits)
    assert states["wait_ns"].sum() == sum(wait for wait, _ in waits)


def test_sizes_and_overlap_agree_with_loops(demo: Demo) -> None:
    calls = rows(read_trace(demo.trace), "comm")
    sizes = CATALOG["sizes"].function(demo.frames)
    assert sizes["num_calls"].sum() == len(calls)
    for row in sizes.to_dict("records"):
        assert row["num_calls"] == sum(
            (each.kind, each.group) == (row["kind"], row["group"])
            and (1 << each.payload_bytes.bit_length() >> 1) == row["from_bytes"]
            for each in calls
        )
    overlap = CATALOG["overlap"].function(demo.frames)
    longest = sum(duration_of(each) for each in calls if each.issue_ns >= 0)
    assert 0 < overlap["exposed_ns"].sum() <= overlap["communication_ns"].sum() <= longest


def test_the_ranks_of_the_demo_fit_together(demo: Demo) -> None:
    assert CATALOG["consistency"].function(demo.frames).empty
    rules = set(findings(demo.frames)["rule"])
    assert not rules & {"reduced_to_be_cut", "padded_shards", "replicated", "outside_modules"}
