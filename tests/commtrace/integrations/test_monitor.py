"""The monitor records once, marks steps once, and logs known numbers of the run on rank 0."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.errors import UsageError
from commtrace.integrations import monitor as module
from commtrace.integrations.monitor import TrainingEnd, TrainingMonitor
from commtrace.integrations.scalars import MEANINGS, scalars_of
from commtrace.session import Recording, record_process
from commtrace.session.flusher import FLUSH_INTERVAL_S
from commtrace.tracefile.destinations import SpoolFolder
from tests.commtrace.analyze.rows import call, run_of

NUM_STEPS = 4


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may take any time, and follow each other at once."""
    monkeypatch.setattr(module, "_LEAST_S", 0.0)
    monkeypatch.setattr(module, "_MOST_SHARE", 1e9)


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes seconds to write; an empty one is enough here."""
    monkeypatch.setattr(Recording, "report", _empty_page)
    monkeypatch.setattr(commtrace.Run, "report", _empty_page)


def _empty_page(run: object, path: Path) -> Path:
    path.touch()
    return path


def train(
    monitor: TrainingMonitor, folder: Path, *, is_read: bool = False
) -> tuple[list[dict[str, float]], TrainingEnd]:
    """Numbers after each of a training's steps, and its end."""
    logged = []
    monitor.begin(folder)
    for _ in range(NUM_STEPS):
        monitor.enter("train")
        dist.all_reduce(torch.ones(1000))
        monitor.step()
        monitor.enter("evaluate")
        dist.all_reduce(torch.ones(1))
        monitor.enter("train")
        if is_read:
            time.sleep(2 * FLUSH_INTERVAL_S)  # until the step is in the file
            logged.append(monitor.scalars())
    ending = monitor.end()
    assert ending is not None
    return logged, ending


def test_numbers_are_logged_at_intervals_and_at_the_end(tmp_path: Path, eager: None) -> None:
    logged, ending = train(
        TrainingMonitor(every_n_steps=1, recording=None), tmp_path / "out", is_read=True
    )
    assert len(logged) == NUM_STEPS
    run = commtrace.load(tmp_path / "out" / "RUN.comm")
    of_run = scalars_of(run.frames())
    assert set(ending.scalars) == {*of_run, "commtrace/findings"} <= set(MEANINGS)
    assert {name: ending.scalars[name] for name in of_run} == of_run
    assert ending.scalars["commtrace/findings"] == len(run.findings())
    assert all(set(numbers) == set(of_run) for numbers in logged)
    assert ending.page == tmp_path / "out" / "report.html"
    assert str(ending.page) in ending.text
    assert "</html>" in ending.page.read_text()
    regions = run.comm.groupby("region", observed=True).size().to_dict()
    assert regions == {"train": NUM_STEPS, "evaluate": NUM_STEPS}


def test_numbers_take_a_bounded_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_page: None
) -> None:
    monkeypatch.setattr(module, "_LEAST_S", 0.0)
    logged, _ = train(TrainingMonitor(every_n_steps=1, recording=None), tmp_path, is_read=True)
    assert [bool(each) for each in logged] == [True, *[False] * (NUM_STEPS - 1)]


def test_a_recording_of_the_program_is_used(tmp_path: Path, no_page: None) -> None:
    with commtrace.record(tmp_path / "own.comm") as own:
        _, ending = train(TrainingMonitor(every_n_steps=1, recording=None), tmp_path / "out")
        assert Recording.in_progress() is own
    assert not (tmp_path / "out" / "RUN.comm").exists()
    assert ending.scalars["commtrace/step_ms"] > 0
    run = commtrace.load(tmp_path / "own.comm")
    assert run.run["steps_from"] == "marked"
    assert sorted(run.steps["step"])[:NUM_STEPS] == list(range(NUM_STEPS))
    assert len(run.comm) == 2 * NUM_STEPS


def test_a_recording_of_the_process_gets_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_page: None
) -> None:
    from commtrace.process_options import ProcessOptions

    monkeypatch.setattr(Recording, "of_process", None)
    options = ProcessOptions("collective", False, None, None, None, "")
    with record_process(SpoolFolder(tmp_path / "spools"), options):
        dist.all_reduce(torch.ones(1))
        train(TrainingMonitor(every_n_steps=1, recording=None), tmp_path / "out")
        dist.all_reduce(torch.ones(1))
    comm = commtrace.load(tmp_path / "spools").comm
    assert comm["step"].tolist()[0] == -1
    assert comm["step"].tolist()[-1] == -1
    assert comm["step"].max() == NUM_STEPS
    assert len(comm) == 2 * NUM_STEPS + 2


@pytest.mark.parametrize("path", [None, "own.json", "own.comm"])
def test_the_given_recording_is_made(tmp_path: Path, path: str | None, no_page: None) -> None:
    given = commtrace.record(path and tmp_path / path, detail="op")
    _, ending = train(TrainingMonitor(every_n_steps=100, recording=given), tmp_path / "out")
    assert ending.page is not None
    assert ending.scalars["commtrace/step_ms"] > 0
    assert not (tmp_path / "out" / "RUN.comm").exists()


def test_other_ranks_log_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "rank", 1)
    monitor = TrainingMonitor(every_n_steps=1, recording=None)
    monitor.begin(tmp_path)
    monitor.step()
    assert monitor.scalars() == {}
    assert monitor.end() is None
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_spool_ends_the_numbers_and_not_the_training(tmp_path: Path, eager: None) -> None:
    monitor = TrainingMonitor(every_n_steps=1, recording=None)
    monitor.begin(tmp_path)
    (tmp_path / "RUN.comm" / "rank-00001.spool").symlink_to(tmp_path)
    monitor.step()
    with pytest.warns(RuntimeWarning, match="no further numbers of communication are logged"):
        assert monitor.scalars() == {}
    assert monitor.scalars() == {}
    monitor.stop()


def test_a_large_run_has_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    _, ending = train(TrainingMonitor(every_n_steps=100, recording=None), tmp_path)
    assert (ending.page, ending.scalars) == (None, {})
    assert f"commtrace report {tmp_path / 'RUN.comm'}" in ending.text


def test_what_is_unknown_is_left_out() -> None:
    assert scalars_of(run_of([call(blocked_ns=-1, wire_bytes=-1, issue_ns=-1)])) == {}


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_an_interval_is_a_number_of_steps(every: int) -> None:
    with pytest.raises(UsageError) as caught:
        TrainingMonitor(every_n_steps=every, recording=None)
    assert str(caught.value) == (
        "cannot log numbers of communication every Nth step\n"
        f"  found: every_n_steps={every!r}\n"
        "  why: it is a number of steps, from 1\n"
        "  try: every_n_steps=100"
    )


def test_the_documentation_lists_the_numbers() -> None:
    text = (Path(__file__).parents[3] / "docs" / "trainers.md").read_text()
    assert dict(re.findall(r"^\| `(commtrace/\w+)` \| (.+) \|$", text, re.M)) == dict(MEANINGS)
