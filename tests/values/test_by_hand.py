"""Programs that communicate by hand agree with a single device, and faults in them are found."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from tests.values.by_hand import recorded
from tests.values.located import result_of

_SUMS = ("dropped", "doubled", "divided", "in bfloat16", "without a rank", "maximum", "wrong rank")
FAULTS: dict[str, dict[str, str]] = {
    "tp": {
        **{f"reduce {kind}": "block.down" for kind in _SUMS},
        **{f"copy {kind}": "block.norm" for kind in _SUMS},
        # The gradient of a layer's input is that of the output of the layer before.
        "reduce backward doubled": "block.up",
        "bias on every rank": "block.down",
        "residual before the reduction": "block.down",
    },
    "sp": {
        **{f"scatter {kind}": "block.down" for kind in (*_SUMS[1:], "off by one")},
        "gather exchanged": "block.up",
        "gather off by one": "block.up",
        **{f"gather backward {kind}": "block.norm" for kind in _SUMS},
        **{f"block.norm.weight {kind}": "block.norm.weight" for kind in _SUMS},
        "bias on every rank": "block.down",
    },
    "dp": {
        **{f"head.weight {kind}": "head.weight" for kind in _SUMS},
        "block.bias dropped": "block.bias",
        "dropout per rank": "dropout",
        "loss by local tokens": "",
        "initialised per rank": "head.weight",
        "gradient clipped by the local norm": "head.weight",
        "update skipped on a rank": "head",
        "momentum of a rank stale": "head.weight",
    },
}
"""Module or parameter of each fault of each kind of program."""
_OF_TWO_STEPS = ("update skipped on a rank", "momentum of a rank stale")


@cache
def on_one_device(level: str, num_steps: int = 2) -> Frames:
    return recorded(level=level, num_steps=num_steps)


@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize("kind", FAULTS)
def test_programs_by_hand_agree_with_one_device(kind: str, level: str) -> None:
    found = compare(on_one_device(level), recorded(kind, level=level))
    assert found.agrees, found.fault
    assert found.num_paired > 80


@cache
def results(kind: str) -> dict[str, str]:
    """Return the result of each fault: located, in doubt, mislocated or missed."""
    found = {}
    for fault, place in FAULTS[kind].items():
        num_steps = 2 if fault in _OF_TWO_STEPS else 1
        run = recorded(kind, fault, num_steps=num_steps)
        found[fault] = result_of(compare(on_one_device("module", num_steps), run).fault, place)
    return found


@pytest.mark.parametrize("kind", FAULTS)
def test_no_fault_by_hand_is_mislocated_without_doubt(kind: str) -> None:
    wrong = {fault: each for fault, each in results(kind).items() if each.startswith("mis")}
    assert wrong == {}


def test_nearly_all_faults_by_hand_are_located() -> None:
    counted = Counter(each.partition(":")[0] for kind in FAULTS for each in results(kind).values())
    assert counted.total() >= 50
    assert counted["located"] >= 0.95 * counted.total(), counted
