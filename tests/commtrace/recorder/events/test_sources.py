"""Source lines around a call are recorded as they were at the time of the call."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import commtrace
from commtrace.recorder.events.sources import Sources
from commtrace.tracefile import parse_spool
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls

PROGRAM = """\
import torch.distributed as dist


def train():
    first = 1
    # the line below communicates
    dist.barrier()
    last = 2
    return last
"""


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(2):
        yield


def module_at(path: Path) -> ModuleType:
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def rows(recording: Any) -> list[Any]:
    return list(recording.trace().rows("sources"))


def test_a_recording_has_the_lines_around_its_calls(world: None, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    module = module_at(path)
    with commtrace.record() as recording:
        for _ in range(3):
            module.train()
    path.write_text("changed\n" * 20)
    text = "\n".join(PROGRAM.splitlines()[3:9])
    assert rows(recording) == [(str(path), 4, text)]
    assert {call.source_line for call in calls(recording)} == {7}


def test_an_interrupted_run_has_them_too(world: None, tmp_path: Path) -> None:
    module = module_at(tmp_path / "program.py")
    with commtrace.record() as recording:
        module.train()
        recording._output.flush()
        spool = parse_spool(recording._output.buffer.contents()[0])
        module.train()
    assert spool.facts["sources"][0][1] == 4


def test_what_a_full_disk_has_refused_is_written_with_the_next_batch(
    world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_at(tmp_path / "program.py")
    with commtrace.record() as recording:
        recording._flusher.stop()
        buffer = recording._output.buffer

        def refuse(*_: Any) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(buffer._writer, "write", refuse)
            module.train()
            with pytest.raises(OSError, match="no space"):
                recording._output.flush()
    assert len(rows(recording)) == 1


def test_no_file_is_opened_for_a_line_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def read(file: str) -> list[str]:
        opened.append(file)
        return ["x"] * 9

    monkeypatch.setattr("commtrace.recorder.events.sources.read_lines", read)
    sources = Sources()
    site = commtrace.recorder.events.sources.SITES["comm"]
    row = ["train.py" if column.name == "source_file" else 4 for column in site]
    assert sources.changes([row, row], []) == {"sources": [["train.py", 1, "\n".join("x" * 7)]]}
    assert sources.changes([row], []) == {}
    assert opened == ["train.py"]
