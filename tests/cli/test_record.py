"""`commtrace record`: the process that it becomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Commtrace


@pytest.mark.parametrize(
    ("launched", "flags"),
    [
        ({}, []),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, []),
        # torchrun starts Python so: output of ranks that it ends must not be lost in a buffer.
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2"}, ["-u"]),
    ],
    ids=["alone", "Slurm", "torchrun"],
)
def test_python_is_started_as_by_the_launcher(
    commtrace: Commtrace,
    monkeypatch: pytest.MonkeyPatch,
    launched: dict[str, str],
    flags: list[str],
) -> None:
    Path("train.py").touch()
    started: list[list[str]] = []
    monkeypatch.setattr(os, "environ", {"PATH": "", **launched})
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    ended = commtrace("record", "-o", "RUN.comm", "train.py", "-o", "model.pt")
    assert ended.code == 0
    own = [sys.executable, *flags, "-m", "commtrace.launching.record_program"]
    assert started == [[*own, "train.py", "-o", "model.pt"]]


@pytest.mark.parametrize(("rank", "num_notes"), [("0", 1), ("1", 0)])
def test_options_of_the_script_that_look_like_ours_are_noted_once(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch, rank: str, num_notes: int
) -> None:
    Path("train.py").touch()
    started: list[list[str]] = []
    monkeypatch.setattr(os, "environ", {"PATH": "", "RANK": rank, "WORLD_SIZE": "2"})
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    ended = commtrace("record", "-o", "RUN.comm", "train.py", "--every", "5", "--", "-m")
    assert started[0][3:] == ["train.py", "--every", "5", "--", "-m"]
    assert ended.err.count("note: --every is passed to train.py") == num_notes
