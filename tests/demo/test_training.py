"""Distributed training gives the losses of the single process, and recording changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.tracefile import read_trace
from tests.demo.conftest import STEPS, Demo, start

AGREEMENT = 1e-4
TIME_LIMIT_S = 60
NUM_CORES = 2
STEPS_OF_THE_DEMO = 30
NUM_RANKS = 2


def test_losses_equal_those_of_a_single_process(
    demo: Demo, single_process_losses: list[float]
) -> None:
    assert len(demo.losses) == len(single_process_losses) == STEPS >= 20
    assert demo.losses == pytest.approx(single_process_losses, rel=0, abs=AGREEMENT)


def test_the_loss_falls(demo: Demo) -> None:
    assert demo.losses[-1] < demo.losses[0] / 1.5
    assert sum(demo.losses[-5:]) < sum(demo.losses[5:10]) < sum(demo.losses[:5])


def test_recorded_training_fits_into_a_minute_of_two_cores(demo: Demo) -> None:
    # CPU time, because it does not depend on the load of the machine.
    assert 0 < demo.cpu_s < NUM_CORES * TIME_LIMIT_S * STEPS / STEPS_OF_THE_DEMO


def numerics(folder: Path, *launcher: str | Path) -> list[Any]:
    """Run the launcher on tests/demo/numerics.py and read what each rank wrote into `folder`."""
    folder.mkdir()
    done = start(*launcher, Path(__file__).with_name("numerics.py"), folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("numerics") / "unrecorded"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS))
    return numerics(folder, *launcher)


@pytest.mark.parametrize("detail", ["op", "collective"])
def test_recording_changes_no_bit_of_losses_and_gradients(
    unrecorded: list[Any], tmp_path: Path, detail: str
) -> None:
    trace = tmp_path / "run.json"
    run = ("-m", "commtrace_cli", "run", "-n", str(NUM_RANKS), "-o", trace, "--detail", detail)
    assert numerics(tmp_path / "recorded", *run) == unrecorded
    assert read_trace(trace).num_rows("comm") > 0, "nothing was recorded, so nothing was shown"


def test_the_comparison_tells_trainings_apart(unrecorded: list[Any]) -> None:
    steps = unrecorded[0]
    losses = {step["loss"] for step in steps}
    gradients = {tuple(step["gradients"].values()) for step in steps}
    assert len(gradients) == len(steps)
    assert len(losses) >= len(steps) // 2
