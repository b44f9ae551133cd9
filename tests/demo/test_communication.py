"""The demo's communication compared with the derivation, call by call and byte by byte."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pandas as pd
import pytest

from tests.demo.conftest import STEPS, Demo
from tests.demo.theory import (
    FLOAT32_BYTES,
    PER_STEP,
    T,
    distributed_parameters,
    wire_bytes,
)


def shape_of_payload(kind: str, input_shapes: str, output_shapes: str) -> int:
    """Number of payload elements of a call, from the shapes of its inputs and outputs."""
    shapes = output_shapes if kind == "all_gather" else input_shapes
    return sum(
        prod(map(int, filter(None, shape.strip("[]").split(",")))) for shape in shapes.split(";")
    )


def departures(comm: pd.DataFrame, mode: str) -> dict[tuple[int, int], tuple[Counter, Counter]]:
    """For each rank and step that departs from theory, the superfluous and the missing calls."""
    expected = Counter(
        {
            (call.phase, call.module, call.kind, call.payload_bytes): count
            for call, count in PER_STEP[mode].items()
        }
    )
    columns = ["phase", "module", "kind", "payload_bytes"]
    found = {place: Counter() for place in product(range(T), range(STEPS))}
    for place, rows in comm[comm["step"] >= 0].groupby(["rank", "step"]):
        found[place] = Counter(rows[columns].itertuples(index=False, name=None))
    compared = {place: (calls - expected, expected - calls) for place, calls in found.items()}
    return {place: both for place, both in compared.items() if any(both)}


def test_every_step_communicates_what_theory_says(demo: Demo) -> None:
    assert departures(demo.frames.comm, demo.mode) == {}


def test_the_comparison_with_theory_sees_one_call_less_or_larger(demo: Demo) -> None:
    comm = demo.frames.comm
    victim = comm[(comm["rank"] == 2) & (comm["step"] == 7)].index[3]
    assert list(departures(comm.drop(victim), demo.mode)) == [(2, 7)]
    larger = comm.copy()
    larger.loc[victim, "payload_bytes"] += 4
    assert list(departures(larger, demo.mode)) == [(2, 7)]


def test_outside_of_steps_parameters_are_handed_out(demo: Demo) -> None:
    expected = Counter(
        (kind, prod(shape) * FLOAT32_BYTES) for kind, shape in distributed_parameters()
    )
    outside = demo.frames.comm[demo.frames.comm["step"] < 0]
    for _, rows in outside.groupby("rank"):
        found = Counter(rows[["kind", "payload_bytes"]].itertuples(index=False, name=None))
        assert found == expected
    assert set(outside["rank"]) == set(range(T))


def test_bytes_recorded_are_bytes_planned(demo: Demo) -> None:
    comm = demo.frames.comm
    pd.testing.assert_series_equal(
        comm["payload_bytes"], comm["planned_bytes"], check_names=False, check_exact=True
    )


def test_bytes_recorded_are_those_of_the_formula(demo: Demo) -> None:
    columns = ["kind", "input_shapes", "output_shapes", "payload_bytes", "wire_bytes"]
    distinct = demo.frames.comm.loc[demo.frames.comm["step"] >= 0, columns].drop_duplicates()
    assert len(distinct) >= 3
    for kind, inputs, outputs, payload, wire in distinct.itertuples(index=False):
        assert payload == shape_of_payload(kind, inputs, outputs) * FLOAT32_BYTES
        assert wire == wire_bytes(kind, payload)


@pytest.mark.parametrize("column", ["reason", "op", "source_spec", "target_spec", "group"])
def test_every_call_says_why_it_was_made(demo: Demo, column: str) -> None:
    silent = demo.frames.comm[demo.frames.comm[column] == ""]
    assert silent[["phase", "module", "kind"]].drop_duplicates().to_numpy().tolist() == []


def test_every_call_belongs_to_the_axis_of_the_mesh(demo: Demo) -> None:
    groups = demo.frames.groups.set_index("name").loc[demo.frames.comm["group"].unique()]
    assert set(groups["mesh_axis"]) == {"tp"}
    assert set(groups["ranks"]) == {",".join(map(str, range(T)))}
