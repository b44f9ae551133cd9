"""The example's data, plan and help; its training is tested in tests/demo."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from itertools import islice
from math import log
from pathlib import Path

import pytest
import torch

from tests.demo.loading import TRAIN_TP, load_example

pytestmark = pytest.mark.usefixtures("preloaded")

train_tp = load_example()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    return subprocess.run(
        [sys.executable, str(TRAIN_TP), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=kept | environment,
    )


def test_targets_are_the_bytes_that_follow() -> None:
    tokens, targets = next(train_tp.batches(seed=0))
    assert tokens.shape == targets.shape == (train_tp.BATCH, train_tp.SEQUENCE)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert "the" in bytes(tokens.flatten().tolist()).decode(errors="replace")


def test_equal_seeds_give_equal_batches_and_models() -> None:
    def tokens(seed: int) -> torch.Tensor:
        return torch.stack([batch for batch, _ in islice(train_tp.batches(seed), 3)])

    assert torch.equal(tokens(1), tokens(1))
    assert not torch.equal(tokens(1), tokens(2))
    first, second = (train_tp.build(seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_every_name_of_the_plan_is_a_module(sequence_parallel: bool) -> None:
    names = [name for name, _ in train_tp.build(seed=0).named_modules()]
    for pattern in train_tp.plan(sequence_parallel):
        assert fnmatch.filter(names, pattern), pattern


def test_an_untrained_model_knows_nothing_and_learns() -> None:
    losses = list(train_tp.train(train_tp.build(0), steps=8, lr=3e-3, seed=0))
    assert losses[0] == pytest.approx(log(train_tp.VOCABULARY), abs=0.5)
    assert losses[-1] < losses[0] - 1


def test_without_ranks_it_says_how_to_start_it() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "train_tp.py: error: no ranks: start this with `commtrace run --nproc 4`, or add "
        "--single-process"
    )


def test_a_single_process_prints_its_losses() -> None:
    done = run("--single-process", "--steps", "2")
    assert (done.returncode, done.stderr) == (0, "")
    first, *steps = done.stdout.splitlines()
    assert first == "235,904 parameters, one process"
    assert [line.split()[:3] for line in steps] == [["step", "0", "loss"], ["step", "1", "loss"]]


def test_its_help_shows_how_to_record_it() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "commtrace run --nproc 4 -o run.json examples/train_tp.py" in done.stdout
    assert Path(TRAIN_TP).is_file()
