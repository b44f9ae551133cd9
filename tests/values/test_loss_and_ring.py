"""Faults of `loss_parallel` and of ring attention are found at the loss and at the attention."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import Any

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.values import Fault, compare
from dtensor_core.experimental import attention
from dtensor_core.parallel import loss
from tests.values import ring
from tests.values.layouts import LOSS_PARALLEL
from tests.values.located import result_of
from tests.values.mutants import KINDS, Place, injected, is_named, places
from tests.values.programs import recorded

LOSS_OPS = ("_log_softmax", "nll_loss_forward", "_log_softmax_backward_data", "nll_loss_backward")


def _of_loss(change: Any) -> Any:
    """Return a fault of the selection of each sample's class, its mask and its weight."""

    def fault(original: Any) -> Any:
        return lambda *args: change(*original(*args))

    return fault


LOSS_FAULTS: dict[str, tuple[str, Any]] = {
    # name: (function of the loss, its fault)
    "class of the next sample": (
        "_selection", _of_loss(lambda is_class, ignored, w: (is_class.roll(1, 0), ignored, w)),
    ),
    "next class": (
        "_selection", _of_loss(lambda is_class, ignored, w: (is_class.roll(1, 1), ignored, w)),
    ),
    "weight of two": (
        "_reduce_over_classes", lambda original: lambda *args: 2 * original(*args),
    ),
    "sum of the classes twice": (
        "_known_sum", lambda original: lambda *args: 2 * original(*args),
    ),
}  # fmt: skip


@cache
def runs_of_loss() -> tuple[Frames, Frames]:
    alone = recorded(LOSS_PARALLEL.model, num_steps=1)
    right = recorded(LOSS_PARALLEL.model, layout=LOSS_PARALLEL, num_steps=1)
    assert compare(alone, right).agrees
    return alone, right


def _is_of_loss(fault: Fault) -> bool:
    return str(fault.right["op"]).split(".")[1:2] in [[each] for each in LOSS_OPS]


def _is_there(place: Place, fault: Fault) -> bool:
    return _is_of_loss(fault) or place.has(fault) or is_named(place, fault)


@cache
def results_of_loss() -> dict[str, str]:
    """Return the result of each mutant of the loss: located, in doubt, mislocated or missed."""
    alone, right = runs_of_loss()
    record = partial(recorded, LOSS_PARALLEL.model, layout=LOSS_PARALLEL, num_steps=1)
    found = {}
    for place in places(right, [""] * 8):
        for kind in list(KINDS[place.kind])[place.number % 2 :: 2]:
            with injected(place, kind):
                run = record()
            where = f"{place.number} {place.phase}: {kind}"
            found[where] = result_of(compare(alone, run).fault, partial(_is_there, place))
    for name, (function, fault) in LOSS_FAULTS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loss, function, fault(getattr(loss, function)))
            found[name] = result_of(compare(alone, record()).fault, _is_of_loss)
    return found


@cache
def results_of_ring() -> dict[str, str]:
    """Return the result of each fault of the ring."""
    alone, found = ring.recorded(), {}
    for name, (owner, function, fault, modules) in ring.FAULTS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, function, fault(getattr(owner, function)))
            method = "allgather" if owner is attention else "alltoall"
            wrong = compare(alone, ring.recorded(method)).fault
        found[name] = result_of(wrong, lambda fault, own=modules: fault.right["module"] in own)
    return found


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_the_ring_agrees_with_one_device(method: str) -> None:
    found = compare(ring.recorded(), ring.recorded(method))
    assert found.agrees, found.fault
    assert found.num_unknown == 0


def test_nearly_all_faults_are_located_and_none_is_mislocated_without_doubt() -> None:
    found = results_of_loss() | results_of_ring()
    counted = Counter(each.partition(":")[0] for each in found.values())
    assert {name: each for name, each in found.items() if each.startswith("mis")} == {}
    assert counted.total() >= 40
    assert counted["located"] >= 0.95 * counted.total(), counted
