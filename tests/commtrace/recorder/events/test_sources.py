"""Source lines around a call are recorded as they were at the time of the call."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import commtrace
from commtrace.recorder.events.location import OTHER, Location
from commtrace.recorder.events.sources import Sources
from commtrace.tracefile import parse_spool
from commtrace.tracefile.sources import MAX_LINES_OF_A_FUNCTION, Snippets
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


def of_file(recording: Any, path: Path) -> list[Any]:
    return [row for row in recording.trace().rows("sources") if row[0] == str(path)]


def test_a_recording_has_the_lines_around_its_calls(world: None, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    module = module_at(path)
    with commtrace.record() as recording:
        for _ in range(3):
            module.train()
    path.write_text("changed\n" * 20)
    text = "\n".join(PROGRAM.splitlines()[3:9])
    assert of_file(recording, path) == [(str(path), 4, text)]
    assert {call.source_line for call in calls(recording)} == {7}


def test_an_interrupted_run_has_them_too(world: None, tmp_path: Path) -> None:
    module = module_at(tmp_path / "program.py")
    with commtrace.record() as recording:
        module.train()
        recording._output.flush()
        spool = parse_spool(recording._output.buffer.contents()[0])
        module.train()
    first = {Path(file).name: line for file, line, _ in reversed(spool.facts["sources"])}
    assert first["program.py"] == 4


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
    assert len(of_file(recording, tmp_path / "program.py")) == 1


def test_no_file_is_opened_for_a_line_that_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def read(file: str) -> list[str]:
        opened.append(file)
        return ["x"] * 9

    monkeypatch.setattr("commtrace.recorder.events.sources.read_lines", read)
    path = tmp_path / "program.py"
    code = module_at(path).train.__code__
    location = Location(OTHER, None, code, 0, None)
    sources = Sources()
    sources.note(location)
    assert sources.changes() == {"sources": [[str(path), 1, "\n".join("x" * 9)]]}
    sources.note(location)
    assert sources.changes() == {}
    assert opened == [str(path)]


LONG = "import torch.distributed as dist\n\n\ndef train(call):\n{}    call()\n{}    return 1\n"


def test_functions_that_calls_are_made_in_and_from_are_whole(world: None, tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(LONG.format("    first = 1\n" * 50, "    last = 2\n" * 50))
    spec = importlib.util.spec_from_file_location("long", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    inner = module_at(tmp_path / "program.py")
    with commtrace.record() as recording:
        made.train(inner.train)
    (call,) = calls(recording)
    assert call.callers.splitlines()[-1] == f"{path}:55 train"
    ((_, line, text),) = of_file(recording, path)
    assert (line, text.splitlines()[-1]) == (4, "    return 1")


def test_a_function_that_is_too_long_is_left_out_but_for_the_lines_around_its_calls() -> None:
    snippets = Snippets()
    lines = ["x"] * (MAX_LINES_OF_A_FUNCTION + 1)
    assert not snippets.add_function("train.py", 1, len(lines), lines)
    assert snippets.add("train.py", 9, lines)
    assert [row.line for row in snippets.rows()] == [6]


def test_functions_leave_room_for_the_lines_around_calls() -> None:
    snippets = Snippets()
    lines = ["x" * 900] * 200
    for number in range(9):
        snippets.add_function(f"part_{number}.py", 1, 100, lines)
    assert snippets.add("train.py", 9, lines)
