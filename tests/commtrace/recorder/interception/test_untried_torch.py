"""Collectives that an untested torch adds are reported instead of going uncounted."""

from __future__ import annotations

import warnings

import pytest
import torch

import commtrace
from commtrace.recorder.interception import signatures, untried_torch
from commtrace.recorder.interception.untried_torch import (
    NEWEST_TRIED,
    UnrecordedOperatorsWarning,
    communication_operators,
    unrecorded,
    warn_of_unrecorded_operators,
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    warn_of_unrecorded_operators.cache_clear()


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> str:
    """A torch newer than the tested versions, with an operator that is in no table."""
    monkeypatch.setattr(torch, "__version__", "9.1.0a0+git")
    monkeypatch.delitem(signatures.SIGNATURES, "c10d::gather_")
    return "c10d::gather_"


def test_the_installed_torch_is_tried_and_has_nothing_unknown() -> None:
    assert tuple(map(int, torch.__version__.split(".")[:2])) <= NEWEST_TRIED
    assert unrecorded(communication_operators()) == []


def test_operators_are_looked_at_by_namespace_and_by_group() -> None:
    operators = communication_operators()
    assert {"c10d::allreduce_", "_c10d_functional::wait_tensor"} <= operators
    assert "aten::mm" not in operators


def test_a_recording_names_them_once(untried: str) -> None:
    with pytest.warns(UnrecordedOperatorsWarning) as caught, commtrace.record():
        pass
    (warning,) = caught
    assert "torch 9.1.0a0+git is newer than 2.15" in str(warning.message)
    assert str(warning.message).endswith(f"are not recorded: {untried}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with commtrace.record():
            pass


def test_other_ranks_leave_it_to_the_first(untried: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    warn_of_unrecorded_operators()


def test_a_tried_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> set[str]:
        raise AssertionError("operators were listed")

    monkeypatch.setattr(untried_torch, "communication_operators", refuse)
    warn_of_unrecorded_operators()
