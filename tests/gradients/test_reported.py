"""Faults that users of other libraries reported, rebuilt as small programs on gloo ranks.

Each has the mechanism of a report in the program of `programs`, and is found in a single recording,
with the parameter or scalar, and the axis or factor.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from commtrace.analyze import Frames
from commtrace.analyze.gradients import gradients
from dtensor_core.testing import run_processes
from tests.gradients.programs import NUM_RANKS, Step, frames_in, train

DENSE = {"layer.weight", "layer.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}
EXPERT = {"expert.weight"}


class LossOfOneAxis(Step):
    """The printed loss is summed over tp alone, along which its layout says that it is partial."""

    def report(self, loss: torch.Tensor) -> None:
        dist.all_reduce(loss, group=self.group("tp"))
        self.recording.observe("loss", loss / NUM_RANKS)


class AveragedTwice(Step):
    """The library averages over dp a sum that is divided by the number of all samples already."""

    def reduce(self, name: str, gradient: torch.Tensor) -> None:
        super().reduce(name, gradient)
        gradient /= 2


class ExpertsDividedByOneAxis(Step):
    """Experts see the samples of all ranks, but are divided by the data ranks alone."""

    def reduce(self, name: str, gradient: torch.Tensor) -> None:
        super().reduce(name, gradient)
        if self.is_expert(name):
            gradient *= 2


class NormOfReplicas(Step):
    """Replicas are summed into the squared norm as if they were shards."""

    def norm(self) -> torch.Tensor:
        own = self.square([*DENSE, *EXPERT])
        dist.all_reduce(own)
        return own.sqrt()


class LocalAtTheBorder(Step):
    """A tensor that leaves a tensor-parallel region as a local tensor loses its sum over tp."""

    def reduce(self, name: str, gradient: torch.Tensor) -> None:
        if name.startswith("norm"):
            dist.all_reduce(gradient, group=self.group("dp"))
            gradient /= NUM_RANKS
        else:
            super().reduce(name, gradient)


REPORTED = {
    # program: (reports, what, names, state, words of the explanation)
    LossOfOneAxis: ("torchtitan 3329, 3280", "loss", {"loss"}, "missing", "not over dp"),
    AveragedTwice: ("torchtitan 2318", "gradient", DENSE | EXPERT, "scaled", "1/2 of"),
    ExpertsDividedByOneAxis: ("pytorch 160285", "gradient", EXPERT, "scaled", "2 times"),
    NormOfReplicas: (
        "torchtitan 1750, NeMo-RL 3788", "gradient norm", {""}, "scaled", "counted once for each",
    ),
    LocalAtTheBorder: (
        "torchtitan 1805, pytorch 172932", "gradient", {"norm.weight", "norm.bias"}, "missing",
        "reduced over dp",
    ),
}  # fmt: skip


def _train_all(folder: str) -> None:
    for program in REPORTED:
        place = Path(folder, program.__name__)
        place.mkdir(exist_ok=True)
        train(program, str(place))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[type[Step], Frames]:
    folder = tmp_path_factory.mktemp("reported")
    run_processes(_train_all, NUM_RANKS, str(folder), timeout_s=120)
    return {program: frames_in(folder / program.__name__) for program in REPORTED}


@pytest.mark.parametrize("program", REPORTED, ids=lambda program: REPORTED[program][0])
def test_a_reported_fault_is_found_with_its_parameter_and_axis(
    program: type[Step], runs: dict[type[Step], Frames]
) -> None:
    _, what, names, state, words = REPORTED[program]
    table = gradients(runs[program])
    found = table[(table["what"] == what) & (table["state"] != "right")]
    assert set(found["name"]) == names
    assert set(found["state"]) == {state}
    assert found["explanation"].str.contains(words, regex=False).all()
    assert found["is_fault"].all()
    assert not table.loc[table["what"] != what, "is_fault"].any()
