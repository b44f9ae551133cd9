"""The scan of refused calls finds ranks that are out of step; operators of each kind have none."""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._internal.opinfo.core import SampleInput

from dtensor_core import DTensor
from dtensor_core.dispatch import make_entry
from tests.opdb import spoiled
from tests.opdb.parts import database
from tests.opdb.spoiled import (
    ACCEPTED,
    ALIKE,
    BAD,
    CRASHES,
    HANGS,
    LEFT_OUT,
    PARTED,
    SENT,
    VALUES,
    Attempt,
    Limits,
    Outcomes,
    judged,
    line,
    outcomes,
)
from tests.opdb.spoilings import spoilings

FEW = Limits(samples=2, spoilings=6, layouts=3)
CHECKED = (
    *("fmax", "sub", "mm", "nn.functional.relu", "diagonal_scatter", "masked_scatter"),
    *("__getitem__", "index_put", "nn.functional.conv_transpose1d", "normal", "cat"),
)


def _info(name: str) -> Any:
    return next(info for info in database() if info.name == name)


@pytest.mark.parametrize("name", CHECKED)
def test_ranks_refuse_calls_alike(name: str) -> None:
    found = outcomes(_info(name), FEW)
    assert found.counts[ALIKE]
    assert not any(found.counts[kind] for kind in BAD), found.texts


def test_ranks_that_are_out_of_step_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_entry, "check_supported", lambda *_: None)
    limits = Limits(samples=2, spoilings=99, layouts=4)
    assert outcomes(_info("nn.functional.relu"), limits).counts[PARTED]


def _operator(on_dtensors: Any) -> Any:
    """Return an OpInfo of an operator of two integers, which plain tensors refuse if spoiled."""

    def op(x: torch.Tensor, number: int) -> torch.Tensor:
        if number not in (1, 2):
            raise ValueError(number)
        if isinstance(x, DTensor):
            on_dtensors()
        if number == 2:
            raise ValueError(number)
        return x

    return SimpleNamespace(
        name="made up",
        op=op,
        sample_inputs=lambda *_, **__: [SampleInput(torch.ones(5), args=(1,))],
    )


def test_a_call_that_ends_the_process_is_found_and_the_next_ones_are_made() -> None:
    limits = Limits(samples=1, spoilings=99, layouts=2)
    found = outcomes(_operator(lambda: os._exit(3)), limits)
    assert found.counts[CRASHES] == 2
    assert found.counts[ALIKE] > 2
    assert "1 -> 2" in found.texts[0][1]
    assert "exit code 3" in found.texts[0][1]


def test_ranks_that_differ_by_the_numbers_that_they_hold_are_counted_apart() -> None:
    limits = Limits(samples=2, spoilings=99, layouts=4)
    found = outcomes(_info("nn.functional.nll_loss"), limits)
    assert found.counts[VALUES]
    assert not any(found.counts[kind] for kind in BAD), found.texts


def test_what_ranks_did_decides_the_outcome() -> None:
    refused, late, passed = (
        Attempt("E: no", ()),
        Attempt("E: no", ("all_reduce",)),
        Attempt(None, ()),
    )
    assert judged([refused] * 2)[0] == ALIKE
    assert judged([late] * 2)[0] == SENT
    assert judged([passed] * 2)[0] == ACCEPTED
    assert judged([refused, passed])[0] == PARTED
    assert judged([refused, late])[0] == PARTED


def test_each_spoiling_differs_from_the_sample_in_one_argument() -> None:
    leaves = [torch.ones(5, 3), torch.tensor([0, 1]), 2, None, "mean"]
    found = list(spoilings(leaves))
    for text, leaf in found:
        changed = [new is not old for new, old in zip(leaf, leaves, strict=True)]
        assert sum(changed) == 1, text
    assert len({text for text, _ in found}) == len(found)


def test_a_line_counts_the_outcomes_of_all_operators() -> None:
    found = [Outcomes(Counter({ALIKE: 3, HANGS: 1})), Outcomes(Counter({SENT: 2, LEFT_OUT: 1}))]
    assert line(found) == (
        "2 operators, 6 calls that torch refuses: 3 alike, 2 sent, 0 accepted, 0 values, 0 parted, "
        "1 hangs, 0 crashes; 1 end torch itself"
    )


@pytest.mark.parametrize("outcome", [ALIKE, SENT, ACCEPTED, VALUES, LEFT_OUT, *BAD])
def test_ranks_that_are_out_of_step_are_a_failure_of_the_command(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Outcomes(Counter({outcome: 1, ALIKE: 3}), [(outcome, "text")])
    monkeypatch.setattr(spoiled, "ProcessPoolExecutor", lambda n, **_: ThreadPoolExecutor(n))
    monkeypatch.setattr(spoiled, "_of_number", lambda *_: ("add", found))
    monkeypatch.setattr(sys, "argv", ["spoiled", "--only", "add"])
    assert spoiled.main() == (outcome in BAD)
