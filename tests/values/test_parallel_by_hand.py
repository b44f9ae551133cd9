"""Vocabulary, context and expert parallel and fully sharded programs by hand, with faults."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from tests.values.located import result_of
from tests.values.parallel_by_hand import recorded

_SUMS = ("dropped", "doubled", "divided", "in bfloat16", "without a rank", "maximum", "wrong rank")
FAULTS: dict[str, dict[str, str]] = {
    "vp": {
        **{f"embedding {kind}": "embedding" for kind in _SUMS},
        "embedding without a mask": "embedding",
        "embedding off by one": "embedding",
        **{f"denominator {kind}": "loss" for kind in _SUMS},
        **{f"target {kind}": "loss" for kind in _SUMS},
        "target off by one": "loss",
        "target without a mask": "loss",
        # The gradient of the head's input is that of the output of the layer before.
        **{f"copy {kind}": "experts" for kind in _SUMS},
    },
    "cp": {
        "halo forgotten": "convolution",
        "halo off by one": "convolution",
        "halo exchanged": "convolution",
        "halo own only": "convolution",
        **{f"{name} {kind}": "attention" for name in ("keys", "values")
           for kind in ("exchanged", "own only")},
        "mask of the part": "attention",
        "blocks not rescaled": "attention",
        **{f"halo backward {kind}": "embedding" for kind in _SUMS[:3]},
        **{f"keys backward {kind}": "convolution" for kind in _SUMS[:3]},
        "loss by local tokens": "loss",
        **{f"head.norm {kind}": "head.norm" for kind in _SUMS},
        "attention.q dropped": "attention.q",
    },
    "ep": {
        "combined in the wrong order": "experts",
        "without weights": "experts",
        "expert sees the first rank": "experts",
        "expert twice": "experts",
        "rows off by one": "experts",
        "experts reduced": "experts.experts",
        **{f"experts.router {kind}": "experts.router" for kind in _SUMS[:3]},
        "loss by local tokens": "loss",
        "loss doubled": "loss",
    },
    "fsdp": {
        **{f"{name} {kind}": name.partition(".")[0].lower()
           for name in ("Embedding.weight", "Experts.experts", "Attention.v")
           for kind in ("exchanged", "own only", "stale")},
        **{f"Head.norm backward {kind}": "head.norm" for kind in _SUMS},
        **{f"Attention.v backward {kind}": "attention.v" for kind in _SUMS[:3]},
        "loss dropped": "loss",
    },
}  # fmt: skip
"""Module or parameter of each fault of each kind of program."""


@cache
def on_one_device(num_steps: int) -> Frames:
    return recorded(num_steps=num_steps)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_programs_agree_with_one_device(kind: str) -> None:
    found = compare(on_one_device(2), recorded(kind))
    assert found.agrees, found.fault
    assert (found.num_paired, found.num_unknown) == (91, 0)


@cache
def results(kind: str) -> dict[str, str]:
    """Return the result of each fault: located, in doubt, mislocated or missed."""
    found = {}
    for fault, place in FAULTS[kind].items():
        num_steps = 2 if fault.endswith("stale") else 1
        run = recorded(kind, fault, num_steps=num_steps)
        found[fault] = result_of(compare(on_one_device(num_steps), run).fault, place)
    return found


@pytest.mark.parametrize("kind", FAULTS)
def test_no_fault_is_mislocated_without_doubt(kind: str) -> None:
    wrong = {fault: each for fault, each in results(kind).items() if each.startswith("mis")}
    assert wrong == {}


def test_nearly_all_faults_are_located() -> None:
    counted = Counter(each.partition(":")[0] for kind in FAULTS for each in results(kind).values())
    assert counted.total() >= 85
    assert counted["located"] >= 0.95 * counted.total(), counted
