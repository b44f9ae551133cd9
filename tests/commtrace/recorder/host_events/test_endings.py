"""Exceptions that nothing catches are events, however the program is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.launching.launcher import run_script
from commtrace.recorder.host_events.exceptions import note_of_error
from commtrace.schema import EXIT, FATAL, THREAD_DIED
from commtrace.tracefile import Trace, read_parts
from tests.cli.conftest import ROOT
from tests.commtrace.recorder.host_events.test_host_events import events

PREAMBLE = """
import sys, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
def ends():
    {body}
ends()
"""
ENDINGS = [
    ("raise KeyError('missing')", "KeyError: 'missing'", "ends"),
    ("raise ValueError('''\\n\\n the batch\\nis empty''')", "ValueError: the batch", "ends"),
    ("sys.exit(3)", "SystemExit: 3", "ends"),
    ("sys.exit(0)", "SystemExit: 0", "ends"),
    ("import os; os._exit(4)", "os._exit", "ends"),
    (
        "\n    try: dict()[5]\n    except KeyError: sys.exit('gave up')",
        "SystemExit: gave up, after KeyError: 5",
        "ends",
    ),
    ("raise KeyboardInterrupt", "KeyboardInterrupt", "ends"),
    ("\n    try: sys.exit(3)\n    except SystemExit: pass", None, ""),
    ("pass", None, ""),
]


def endings(trace: Trace) -> list[tuple[str, str, list[str]]]:
    """Text and function of what ended a rank, and the functions of its stack."""
    table = trace.tables["host_events"]
    columns: Any = (table[name] for name in ("kind", "text", "source_function", "stack"))
    return [
        (text, function, [line.rpartition(" ")[2] for line in stack.split("\n") if line])
        for kind, text, function, stack in zip(*columns, strict=True)
        if kind in (FATAL, EXIT)
    ]


@pytest.mark.parametrize("how", ["run", "record", "variable"])
@pytest.mark.parametrize(("body", "text", "function"), ENDINGS)
def test_what_ends_a_rank_is_an_event(
    how: str, body: str, text: str | None, function: str, tmp_path: Path
) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "RUN.comm"
    script.write_text(PREAMBLE.format(body=body))
    if how == "run":
        run_script(script, nproc=1, spool_folder=folder)
    else:
        module = ["-m", "commtrace.launching.record_program"] if how == "record" else []
        code = (
            "import commtrace.launching.auto; "
            "import runpy; runpy.run_path('train.py', run_name='__main__')"
        )
        command = [sys.executable, *(module or ["-c", code]), *(["train.py"] if module else [])]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "COMMTRACE": str(folder), "RANK": "0",
        }  # fmt: skip
        subprocess.run(command, cwd=tmp_path, env=environment, timeout=120, check=False)
    found = [(*each, stack[-2:]) for *each, stack in endings(read_parts([folder]))]
    assert found == ([] if text is None else [(text, function, ["<module>", "ends"])])


def test_what_leaves_a_recording_is_an_event() -> None:
    recording = commtrace.record()
    with pytest.raises(KeyError), recording:
        raise KeyError("missing")
    (row,) = events(recording, FATAL)
    assert (row["text"], row["source_file"]) == ("KeyError: 'missing'", __file__)
    with commtrace.record() as other:
        pass
    assert events(other, FATAL) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_a_thread_is_an_event_of_another_kind() -> None:
    def fails() -> None:
        raise ValueError("the loader failed")

    with commtrace.record() as recording:
        for target in (fails, sys.exit):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    (row,) = events(recording, THREAD_DIED)
    assert (row["text"], row["source_function"]) == ("ValueError: the loader failed", "fails")
    assert row["thread"] != os.getpid()
    assert events(recording, FATAL) == []


def test_hooks_come_back_and_those_of_the_program_stay() -> None:
    def hooks() -> list[Any]:
        return [sys.excepthook, sys.exit, threading.excepthook]

    before = hooks()
    with commtrace.record():
        assert all(one is not other for one, other in zip(before, hooks(), strict=True))
    assert hooks() == before
    try:
        with commtrace.record():
            sys.excepthook = own = lambda *_: None
        assert sys.excepthook is own
    finally:
        sys.excepthook = before[0]


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as found:
        return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions are of Python 3.11")
def test_a_group_of_exceptions_states_its_first_one() -> None:
    group = raised(ExceptionGroup("two failed", [ValueError("\nempty"), KeyError(5)]))  # noqa: F821
    assert note_of_error(FATAL, group).text == (
        "ExceptionGroup: two failed (2 sub-exceptions), first ValueError: empty"
    )


def test_a_chained_exception_is_the_last_one() -> None:
    error = raised(RuntimeError("step failed"), raised(ValueError("empty")))
    note = note_of_error(FATAL, error)
    assert note.text == "RuntimeError: step failed"
    assert note.code is not None
    assert note.code.co_name == "raised"
