"""Kinds of operators are found again, and forgotten once there are too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import commtrace
from commtrace.recorder import CURRENT, operator_kinds
from commtrace.recorder.events import operator_sites
from commtrace.recorder.operator_kinds import (
    DTENSOR,
    LOCAL,
    OperatorKind,
    OperatorKinds,
    OperatorPlace,
)
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import ops

FEW = 8
ADD = torch.ops.aten.add.Tensor


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(operator_kinds, "_MAX_KINDS", FEW)
    with fake_world(2):
        yield


def num_kinds(kinds: OperatorKinds) -> int:
    return sum(
        1 + len(each.local) + len(each.on_dtensors)
        for nearby in kinds._places.values()
        for each in nearby.values()
    )


def test_a_place_and_a_phase_are_found_again() -> None:
    kinds = OperatorKinds()
    where = kinds.where(0, "forward", (), None, 1)
    assert kinds.where(0, "forward", (), None, 1) is where
    assert kinds.where(0, "backward", (), None, 1) is not where
    assert kinds.where(0, "forward", ("a",), None, 1) is not where
    assert kinds.where(1, "forward", (), None, 1) is not where


def test_kinds_at_one_place_do_not_grow_without_end(few_kinds: None) -> None:
    kinds = OperatorKinds()
    where = kinds.where(0, "forward", (), None, 1)
    made = [SimpleNamespace(_schema=ADD._schema, tags=ADD.tags) for _ in range(10 * FEW)]
    for op in made:
        where.learn(op, LOCAL)
        where.learn(op, DTENSOR)
        assert num_kinds(kinds) <= FEW + 1
    assert where.on_dtensors[id(made[-1])].op is made[-1]


def test_places_do_not_grow_without_end(few_kinds: None) -> None:
    kinds = OperatorKinds()
    for number in range(10 * FEW):
        where = kinds.where(0, "forward", (str(number),), None, 1)
        where.learn(ADD, LOCAL)
        assert num_kinds(kinds) <= FEW + 1


def test_a_place_that_was_forgotten_while_an_operator_ran_there_is_of_use_to_it() -> None:
    kinds = OperatorKinds()
    where = kinds.where(0, "forward", (), None, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(operator_kinds, "_MAX_KINDS", 1)
        kinds.where(0, "backward", (), None, 1)
    kind = where.learn(ADD, LOCAL)
    assert isinstance(kind, OperatorKind)
    assert isinstance(kind.where, OperatorPlace)
    assert kind.where.phase == "forward"


def test_a_recording_of_ever_new_operators_and_regions_is_complete_and_bounded(
    few_kinds: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(operator_sites, "_MAX_KINDS", FEW)
    names = [f"commtrace_test_kinds::op_{number}" for number in range(5 * FEW)]
    with torch.library._scoped_library("commtrace_test_kinds", "FRAGMENT") as library:
        for name in names:
            library.define(f"{name.partition('::')[2]}(Tensor x) -> Tensor")
            library.impl(name.partition("::")[2], torch.Tensor.clone, "CompositeExplicitAutograd")
        tensor = torch.ones(1)
        with commtrace.record() as recording:
            for name in names:
                with recording.region(name):
                    getattr(torch.ops.commtrace_test_kinds, name.partition("::")[2])(tensor)
                assert num_kinds(CURRENT.operators.kinds) <= FEW + 1
            recording._output.flush()
            assert len(recording._output.buffer._op_sites._known) <= FEW
    found = [(op.op, op.region) for op in ops(recording) if op.parent < 0]
    assert found == [(f"{name.replace('::', '.')}.default", name) for name in names]
