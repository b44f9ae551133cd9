"""Files beside a spool add stacks and the exit code of a rank that could not write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.event import HostEventRow
from commtrace.schema import STUCK
from commtrace.tracefile import SpoolWriter, read_parts, spool_name
from commtrace.tracefile.beside_spool import leave_exit_code, leave_stacks
from commtrace.tracefile.joining.collection import copy_parts
from commtrace.tracefile.spool_reading import pid_of_spool, read_outline, read_spool
from tests.commtrace.synthetic import START_NS, synthetic_facts

MAIN = 0xB2
TEXT = f"""\
Thread 0x00000000000000a1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 3 in wait
Thread 0x00000000000000a2 (most recent call first):
  File "/home/me/data.py", line 5 in load
Current thread 0x{MAIN:016x} (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 8 in acquire
  File "/home/me/train.py", line 7 in <module>
"""


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "RUN.comm" / spool_name(1)
    path.parent.mkdir()
    with path.open("wb") as stream:
        writer = SpoolWriter(stream, {**synthetic_facts(1, 2), "pid": 77, "main_thread": MAIN})
        writer.write({"host_events": [HostEventRow(rank=1, id=0, kind="gc_pause", text="old")]})
    return path


def events(path: Path) -> list[dict[str, Any]]:
    table = read_parts([path]).tables["host_events"]
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def test_stacks_become_events_of_the_main_thread_and_of_those_in_the_users_code(
    spool: Path,
) -> None:
    leave_stacks(spool, TEXT, START_NS + 5)
    old, main, loader = events(spool)
    assert (old["kind"], old["stack"]) == ("gc_pause", "")
    assert main == {
        **{"rank": 1, "id": 1, "kind": STUCK, "at_ns": main["at_ns"], "duration_ns": -1},
        **{"step": -1, "thread": 77, "text": "MainThread", "source_file": "/home/me/train.py"},
        **{"source_line": 7, "source_function": "<module>"},
        "stack": "/home/me/train.py:7 <module>\n/usr/lib/python3.11/threading.py:8 acquire",
    }
    assert (loader["id"], loader["thread"], loader["text"]) == (2, -1, "thread 0xa2")
    assert list(read_spool(spool).tables["host_events"]["at_ns"])[1:] == [START_NS + 5] * 2


def test_an_outline_has_the_same_events(spool: Path) -> None:
    leave_stacks(spool, TEXT, START_NS + 5)
    table = read_outline(spool).tables["host_events"]
    assert list(table["kind"]) == ["gc_pause", STUCK, STUCK]


@pytest.mark.parametrize("text", ["", "nonsense\n", TEXT[:40]])
def test_without_a_whole_dump_there_is_no_event(text: str, spool: Path) -> None:
    leave_stacks(spool, text, START_NS)
    assert [row["kind"] for row in events(spool)] == ["gc_pause"]


@pytest.mark.parametrize(("code", "stated"), [(0, 0), (3, 3), (-9, -9), (-1, 129)])
def test_a_rank_states_how_its_process_ended(code: int, stated: int, spool: Path) -> None:
    assert list(read_parts([spool]).tables["ranks"]["exit_code"]) == [-1]
    leave_exit_code(spool, code)
    assert list(read_parts([spool]).tables["ranks"]["exit_code"]) == [stated]
    assert read_outline(spool).facts["exit_code"] == stated


def test_they_belong_to_the_last_segment(spool: Path) -> None:
    leave_stacks(spool, TEXT, START_NS)
    later = spool.with_suffix(".s1.spool")
    later.write_bytes(spool.read_bytes())
    assert len(read_spool(spool).tables["host_events"]["id"]) == 1
    assert len(read_spool(later).tables["host_events"]["id"]) == 3


def test_they_are_copied_with_their_spool(spool: Path, tmp_path: Path) -> None:
    leave_stacks(spool, TEXT, START_NS + 5)
    leave_exit_code(spool, -9)
    copy_parts([spool.parent], tmp_path / "COPY.comm")
    copy = read_parts([tmp_path / "COPY.comm"])
    assert list(copy.tables["ranks"]["exit_code"]) == [-9]
    assert copy.tables["host_events"]["at_ns"] == read_parts([spool]).tables["host_events"]["at_ns"]


def test_the_process_of_a_spool_is_known_from_its_first_batch(spool: Path, tmp_path: Path) -> None:
    assert pid_of_spool(spool) == 77
    spool.write_bytes(spool.read_bytes()[:40])
    assert pid_of_spool(spool) == -1
    assert pid_of_spool(tmp_path / "none.spool") == -1
