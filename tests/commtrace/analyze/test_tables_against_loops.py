"""Each analysis against a second computation: plain loops over the rows of random traces."""

from __future__ import annotations

import math
from typing import Any

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.arrivals import arrivals
from commtrace.tracefile import Trace
from tests.commtrace.analyze.by_hand import EVERYONE, NAMES, TRANSFERS, measures_by, rows, waits_of
from tests.commtrace.analyze.rows import random_trace
from tests.commtrace.analyze.training import training_trace

TRACES = [random_trace(seed) for seed in range(6)] + [training_trace()]


def same(found: dict[str, float], wanted: dict[str, float]) -> bool:
    return found == pytest.approx(wanted, rel=1e-12, nan_ok=True)


@pytest.fixture(params=TRACES, ids=[*(f"random{seed}" for seed in range(6)), "training"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return request.param


@pytest.mark.parametrize(
    ("name", "keys"),
    [("by_kind", ["kind"]), ("by_phase", ["phase"]), ("by_op", ["op", "kind"])],
)
def test_a_flat_table_agrees_with_loops(trace: Trace, name: str, keys: list[str]) -> None:
    wanted = measures_by(trace, lambda call: tuple(getattr(call, key) for key in keys))
    table = CATALOG[name].function(load(trace))
    found = {
        tuple(row[key] for key in keys): {measure: row[measure] for measure in NAMES}
        for row in table.to_dict("records")
    }
    assert found.keys() == wanted.keys()
    for key, measures in wanted.items():
        assert same(found[key], measures), key


def test_the_tree_of_modules_agrees_with_loops(trace: Trace) -> None:
    table = CATALOG["by_module"].function(load(trace)).to_dict("records")
    own = measures_by(trace, lambda call: call.module)
    for row in table:
        inside = row["module"]
        below = measures_by(
            trace,
            lambda call, inside=inside: (
                inside in ("", call.module) or call.module.startswith(f"{inside}.")
            ),
        )[True]
        assert same({name: row[name] for name in NAMES}, below), inside
        for name in ("num_calls", "payload_bytes", "wire_bytes", "blocked_ns"):
            wanted = own.get(inside, {}).get(name, 0.0)
            known = 0.0 if math.isnan(wanted) else wanted
            assert row[f"own_{name}"] == pytest.approx(known)
    assert {row["module"] for row in table} >= own.keys()


def test_the_table_by_step_agrees_with_loops(trace: Trace) -> None:
    num_ranks = len(rows(trace, "ranks"))
    wanted = measures_by(trace, lambda call: call.step)
    for row in CATALOG["by_step"].function(load(trace)).to_dict("records"):
        measures = wanted[row["step"]]
        for name in ("num_calls", "payload_bytes", "wire_bytes", "blocked_ns"):
            assert row[name] == pytest.approx(measures[name], nan_ok=True)
        if row["step"] >= 0:
            lasted = [s.end_ns - s.start_ns for s in rows(trace, "steps") if s.step == row["step"]]
            assert row["duration_ns"] == pytest.approx(sum(lasted) / num_ranks)
            assert row["share"] == pytest.approx(measures["blocked_ns"] / row["duration_ns"])


def test_the_table_by_rank_agrees_with_loops(trace: Trace) -> None:
    comm = rows(trace, "comm")
    waits = waits_of(trace)
    for row in CATALOG["by_rank"].function(load(trace)).to_dict("records"):
        rank = row["rank"]
        own = [call for call in comm if call.rank == rank]
        pairs = [(call, wait) for call, wait in zip(comm, waits, strict=True) if wait is not None]
        assert row["num_calls"] == len(own)
        for name in ("payload_bytes", "wire_bytes", "blocked_ns"):
            assert row[name] == sum(max(getattr(call, name), 0) for call in own)
        assert row["wait_ns"] == sum(wait for call, (wait, _) in pairs if call.rank == rank)
        assert row["caused_wait_ns"] == sum(
            wait for call, (wait, last) in pairs if last == rank and call.rank != rank
        )
        assert row["num_last"] == sum(
            last == call.rank == rank for call, (_, last) in pairs if call.kind in EVERYONE
        )


def test_the_wait_of_every_call_agrees_with_loops(trace: Trace) -> None:
    comm = rows(trace, "comm")
    found: list[dict[str, Any]] = arrivals(load(trace)).to_dict("records")
    known = 0
    for call, arrival, wanted in zip(comm, found, waits_of(trace), strict=True):
        assert (arrival["rank"], arrival["id"]) == (call.rank, call.id)
        if wanted is None:
            unknown = [arrival[name] for name in ("wait_ns", "transfer_ns", "last_rank")]
            assert unknown == [-1, -1, -1]
            continue
        known += 1
        wait, last = wanted
        assert (arrival["wait_ns"], arrival["last_rank"]) == (wait, last)
        assert arrival["transfer_ns"] == call.blocked_ns - wait
    assert known


def test_the_random_traces_have_transfers_whose_wait_is_known() -> None:
    assert any(
        wait is not None and call.kind in TRANSFERS
        for trace in TRACES
        for call, wait in zip(rows(trace, "comm"), waits_of(trace), strict=True)
    )
