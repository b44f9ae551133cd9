"""Values that ranks collect in each step, although training does not need them."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from commtrace.tracefile import Trace
from tests.commtrace.analyze.metric_rows import NUM_STEPS, OTHERS, collected


def found(trace: Trace) -> list[dict[str, Any]]:
    table = findings(load(trace))
    return table[table["rule"] == "metrics_each_step"].to_dict("records")


@pytest.mark.parametrize("reader", ["", "aten._local_scalar_dense.default"])
def test_a_loss_that_is_collected_in_each_step_is_found_with_its_wait(reader: str) -> None:
    (one,) = found(collected(reader=reader))
    assert one["title"] == (
        "In most steps, 6 calls of all_gather carry 8 B that training does not need: computed "
        "before the backward pass, collected after it, at train.py:9. Ranks are blocked for 1 ms "
        "of a step by it, 500 µs of it for the last rank to arrive."
    )
    assert one["change"] == "remove where finding=1"
    # Both ranks are 1 ms faster: rank 1 by its own, rank 0 by its wait and its transfer.
    assert one["cost_ns"] == pytest.approx(NUM_STEPS * 1_000_000)
    assert one["source"] == "train.py:9"


@pytest.mark.parametrize("columns", OTHERS)
def test_what_training_may_need_is_no_metric(columns: dict[str, Any]) -> None:
    assert found(collected(**columns)) == []


def test_a_value_between_the_backward_pass_and_the_optimizer_may_scale_gradients() -> None:
    trace = collected(reader="aten._local_scalar_dense.default")
    ops = trace.tables["ops"]
    ops["phase"] = ["other" if each == "optimizer" else each for each in ops["phase"]]
    assert found(trace) == []
