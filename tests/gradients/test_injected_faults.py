"""Wrong reductions that are injected in a program are found in a single recording of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.gradients import gradients, wrong_reductions
from tests.gradients.programs import NUM_RANKS, NUM_STEPS, Step, recorded, with_

NORM = ("norm.weight", "norm.bias")
REPLICATED = ("layer.weight", "layer.bias", *NORM, "head.weight", "head.bias")
EXPERT = ("expert.weight",)
DENSE = REPLICATED


def _of(names: tuple[str, ...], change: Any) -> type[Step]:
    """Return a step that reduces some gradients otherwise."""

    def reduce(self: Step, name: str, gradient: torch.Tensor) -> None:
        if name in names:
            change(self, name, gradient)
        else:
            Step.reduce(self, name, gradient)

    return with_(reduce=reduce)


def _only(axis: str, divisor: int = NUM_RANKS) -> Any:
    def reduce(self: Step, name: str, gradient: torch.Tensor) -> None:
        if axis:
            dist.all_reduce(gradient, group=self.group(axis))
        gradient /= divisor

    return reduce


def _then(change: Any) -> Any:
    def reduce(self: Step, name: str, gradient: torch.Tensor) -> None:
        Step.reduce(self, name, gradient)
        change(self, gradient)

    return reduce


def _again(axis: str) -> Any:
    return _then(lambda self, gradient: dist.all_reduce(gradient, group=self.group(axis)))


def _times(factor: float) -> Any:
    return _then(lambda self, gradient: gradient.mul_(factor))


def _without_last(self: Step, name: str, gradient: torch.Tensor) -> None:
    if dist.get_rank() == NUM_RANKS - 1:
        gradient.zero_()
    Step.reduce(self, name, gradient)


def _mixed(self: Step, name: str, gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)
    gradient /= NUM_RANKS


def _on_one_rank(self: Step, name: str, gradient: torch.Tensor) -> None:
    Step.reduce(self, name, gradient)
    if dist.get_rank() == 2:
        gradient *= 3


FAULTS: dict[str, tuple[type[Step], tuple[str, ...], str, float, str]] = {
    # name: (program, parameters, state, factor or nan, words of the explanation)
    "norm weights not reduced over the sequence": (
        _of(NORM, _only("dp")), NORM, "missing", math.nan, "reduced over dp",
    ),
    "a weight not reduced over data": (
        _of(("head.weight",), _only("tp")), ("head.weight",), "missing", math.nan,
        "reduced over tp",
    ),
    "a weight not reduced at all": (
        _of(("layer.bias",), _only("")), ("layer.bias",), "missing", math.nan, "is not reduced",
    ),
    "an expert not reduced over data": (
        _of(EXPERT, _only("")), EXPERT, "missing", math.nan, "is not reduced",
    ),
    "a weight reduced twice over tp": (
        _of(("head.bias",), _again("tp")), ("head.bias",), "scaled", 2, "2 is the size of",
    ),
    "a weight reduced twice over all": (
        _of(("head.bias",), _then(lambda self, gradient: dist.all_reduce(gradient))),
        ("head.bias",), "scaled", 4, "4 times",
    ),
    "expert gradients divided by dp only": (
        _of(EXPERT, _only("dp", 2)), EXPERT, "scaled", 2, "2 times what it should be",
    ),
    "expert gradients divided twice": (_of(EXPERT, _times(0.5)), EXPERT, "scaled", 0.5, "1/2 of"),
    "a gradient that lost one percent": (
        _of(("layer.weight",), _times(0.99)), ("layer.weight",), "scaled", 0.99, "0.99 times",
    ),
    "a gradient of the wrong sign": (
        _of(("layer.weight",), _times(-1)), ("layer.weight",), "scaled", -1, "-1 times",
    ),
    "one rank's contribution lost": (
        _of(("layer.weight",), _without_last), ("layer.weight",), "missing", math.nan,
        "rank 3",
    ),
    "experts mixed over tp": (_of(EXPERT, _mixed), EXPERT, "mixed", math.nan, "other elements"),
    "one rank's copy is wrong": (
        _of(("head.weight",), _on_one_rank), ("head.weight",), "scaled", 3, "3 times",
    ),
    "no gradient divided": (
        _of((*DENSE, *EXPERT), _times(NUM_RANKS)), (*DENSE, *EXPERT), "scaled", 4, "4 times",
    ),
    "all divided by the data ranks only": (
        _of((*DENSE, *EXPERT), _times(2)), (*DENSE, *EXPERT), "scaled", 2, "2 times",
    ),
}  # fmt: skip


def _faults(run: Frames) -> list[dict[str, Any]]:
    table = gradients(run)
    return table[table["is_fault"]].to_dict("records")


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_reduction_is_found_at_its_parameter(name: str) -> None:
    program, names, state, factor, words = FAULTS[name]
    run = recorded(program)
    found = _faults(run)
    assert {each["name"] for each in found if each["what"] == "gradient"} == set(names)
    assert {each["what"] for each in found} == {"gradient"}
    assert {each["step"] for each in found} == set(range(NUM_STEPS))
    assert {each["state"] for each in found} == {state}
    for each in found:
        assert words in each["explanation"]
        if not math.isnan(factor):
            assert each["scale"] / each["expected_scale"] == pytest.approx(factor, rel=1e-3)
    problems = CATALOG["consistency"].function(run)
    assert "wrong reduction" in set(problems.loc[problems["is_fault"], "problem"])
    rules = CATALOG["findings"].function(run)
    assert (rules["rule"] == "wrong_reduction").sum() == len(wrong_reductions(run))


def _report(change: Any) -> type[Step]:
    def report(self: Step, loss: torch.Tensor) -> None:
        self.recording.observe("loss", change(self, loss.clone()))

    return with_(report=report)


def _reduced(loss: torch.Tensor, group: Any = None) -> torch.Tensor:
    dist.all_reduce(loss, group=group)
    return loss


SCALARS: dict[str, tuple[type[Step], str, str, str]] = {
    "a loss divided by the ranks twice": (
        _report(lambda self, loss: _reduced(loss) / 8), "loss", "scaled", "1/2 of the mean",
    ),
    "a loss summed over tp and not divided": (
        _report(lambda self, loss: _reduced(loss) / 2), "loss", "scaled", "2 times the mean",
    ),
    "experts counted on each data rank": (
        with_(norm=lambda self: _reduced(self.square(["expert.weight"]), None).add(
            self.square(list(REPLICATED))).sqrt()), "gradient norm", "unknown", "times the norm",
    ),
    "a norm of what the rank holds": (
        with_(norm=lambda self: self.square([*REPLICATED, *EXPERT]).sqrt()), "gradient norm",
        "missing", "not reduced",
    ),
    "a norm that counts replicas": (
        with_(norm=lambda self: _reduced(self.square([*REPLICATED, *EXPERT])).sqrt()),
        "gradient norm", "scaled", "counted once for each",
    ),
    "gradients clipped twice": (
        with_(clip=lambda self: [Step.clip(self), [each.grad.mul_(0.5)
                                                  for each in self.model.parameters()]]),
        "clipping", "scaled", "follows from the norm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_a_wrong_scalar_is_found(name: str) -> None:
    program, what, state, words = SCALARS[name]
    table = gradients(recorded(program))
    found = table[(table["what"] == what) & (table["state"] != "right")]
    assert set(found["state"]) == {state}
    assert found["explanation"].str.contains(words, regex=False).all()
    assert found["is_fault"].eq(state != "unknown").all()
    others = table[table["what"] != what]
    assert not others["is_fault"].any()


def test_a_loss_that_is_not_reduced_is_missing_and_no_fault() -> None:
    table = gradients(recorded(_report(lambda self, loss: loss)))
    losses = table[table["what"] == "loss"]
    assert set(losses["state"]) == {"missing"}
    assert not losses["is_fault"].any()


def test_a_right_program_has_no_fault() -> None:
    run = recorded()
    table = gradients(run)
    assert set(table["state"]) == {"right"}
    assert set(table["what"]) == {"gradient", "loss", "gradient norm", "clipping"}
    assert len(table) == NUM_STEPS * (6 + 2 + 3)
    own = table[table["name"] == "head.weight"].iloc[0]
    assert (own["num_contributions"], own["num_reduced"], own["num_losses"]) == (4, 4, 4)
    assert own["scale"] == pytest.approx(0.25)
    assert "all_reduce (sum)" in own["calls"]
    assert not CATALOG["consistency"].function(run)["is_fault"].any()
