"""The programs in docs/trainers.md train on two ranks, and log what the page says they log."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

import commtrace
from commtrace.integrations.scalars import FINDINGS, MEANINGS, scalars_of
from tests.preloaded import forked_interpreters

TEXT = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
PROGRAMS = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)```", TEXT, re.M | re.S))
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
DEADLINE_S = 240


def run_program(name: str, folder: Path, launcher: tuple[str, ...] = TORCHRUN) -> Path:
    """The output folder of a program of the page, which has run on two ranks."""
    (folder / "train.py").write_text(PROGRAMS[name])
    with forked_interpreters():
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "train.py"],
            cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def logged_to_tensorboard(folder: Path) -> Iterator[tuple[int, str, float | str]]:
    """Step, name and value, or text, of each number and text in the event files below a folder."""
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            (length,) = struct.unpack_from("<Q", data, position)
            event = Event.FromString(data[position + 12 : position + 12 + length])
            position += 16 + length
            for each in event.summary.value:
                texts = each.tensor.string_val
                yield event.step, each.tag, texts[0].decode() if texts else each.simple_value


def check_numbers(out: Path, last: dict[str, float]) -> None:
    """Check the last numbers, the recording and the page."""
    run = commtrace.load(out / "RUN.comm")
    expected = scalars_of(run.frames())
    assert set(expected) == set(MEANINGS) - {FINDINGS}
    assert last == pytest.approx({**expected, FINDINGS: len(run.findings())}, rel=1e-5)
    assert "</html>" in (out / "report.html").read_text()
    texts = [text for _, name, text in logged_to_tensorboard(out) if "report" in name]
    assert len(texts) == 1
    assert "out/report.html" in str(texts[0])


def regions_of(out: Path) -> set[str]:
    return set(commtrace.load(out / "RUN.comm").comm["region"].unique()) - {""}


def test_transformers(tmp_path: Path) -> None:
    out = run_program("transformers", tmp_path)
    logged = [
        (step, name.removeprefix("train/"), float(value))
        for step, name, value in logged_to_tensorboard(out)
        if name.startswith("train/commtrace/")
    ]
    last = {name: value for step, name, value in logged if step == 400}
    check_numbers(out, last)
    assert regions_of(out) == {"train", "evaluate", "save"}
    run = commtrace.load(out / "RUN.comm")
    assert run.run["steps_from"] == "marked"
    assert run.comm.query("kind == 'all_reduce'")["step"].max() == 399
    # Its writer is still open when the callback logs for the last time.
    assert len(list(out.rglob("events.out.tfevents.*"))) == 1
    losses = [step for step, name, _ in logged_to_tensorboard(out) if name == "train/loss"]
    assert losses == [100, 200, 300, 400]  # which a log of ours does not prevent


def test_lightning(tmp_path: Path) -> None:
    out = run_program("Lightning", tmp_path)
    (path,) = out.rglob("metrics.csv")
    rows = [
        row for row in csv.DictReader(path.read_text().splitlines()) if row["commtrace/step_ms"]
    ]
    assert rows[-1]["step"] == "400"
    check_numbers(out, {name: float(rows[-1][name]) for name in MEANINGS})
    assert regions_of(out) == {"train", "evaluate", "save"}
    assert commtrace.load(out / "RUN.comm").run["steps_from"] == "marked"


def test_accelerate(tmp_path: Path) -> None:
    out = run_program("accelerate", tmp_path)
    logged = [each for each in logged_to_tensorboard(out) if each[1] in MEANINGS]
    check_numbers(out, {name: float(value) for step, name, value in logged if step == 415})
    assert regions_of(out) == {"evaluate"}
    run = commtrace.load(out / "RUN.comm")
    assert run.run["steps_from"] == "optimizer"
    assert run.steps["step"].nunique() == 416


def test_transformers_under_commtrace_run(tmp_path: Path) -> None:
    launcher = ("commtrace_cli", "run", "--nproc", "2", "-o", "run.json")
    out = run_program("transformers", tmp_path, launcher)
    assert not (out / "RUN.comm").exists()
    assert (out / "report.html").exists()
    run = commtrace.load(tmp_path / "run.json")
    assert run.run["steps_from"] == "marked"
    assert run.comm.query("kind == 'all_reduce'")["step"].max() == 399
    state = json.loads((out / "checkpoint-400" / "trainer_state.json").read_text())
    assert state["global_step"] == 400
    last = [name for step, name, _ in logged_to_tensorboard(out) if step == 400]
    assert {f"train/{name}" for name in MEANINGS} <= set(last)
