"""A pickle is read without executing any of its callables."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import TraceError
from commtrace.importers import import_trace
from commtrace.importers.plain_pickle import BrokenPickleError, ForbiddenNameError, load_plain
from commtrace.tracefile.reading import MoreThanError


class Runs:
    """Pickles as a call of the given function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


PLAIN = {
    "version": "2.10",
    "entries": [(1, -2.5, None, True, "ä"), [b"x", {1, 2}]],
    "pg_config": {},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back_from_every_protocol(protocol: int) -> None:
    plain = {**PLAIN, "entries": PLAIN["entries"][:1]}
    assert load_plain(pickle.dumps(plain, protocol)) == plain


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_a_command_is_refused_before_it_runs(
    protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    payload = pickle.dumps({"entries": [Runs(os.system, f"touch {mark}")]}, protocol)
    with pytest.raises(ForbiddenNameError) as raised:
        load_plain(payload)
    assert raised.value.name == f"{os.system.__module__}.system"
    assert not mark.exists()


def test_the_guard_is_what_keeps_it_from_running(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Runs(os.mkdir, str(mark))))
    assert mark.exists()


@pytest.mark.parametrize(
    "value",
    [Runs(eval, "1"), Runs(getattr, [], "append"), print, Path("x"), 1j, bytearray(b"x")],
    ids=["eval", "getattr", "function", "path", "complex", "bytearray"],
)
def test_nothing_but_plain_values_can_be_loaded(value: Any) -> None:
    with pytest.raises(ForbiddenNameError):
        load_plain(pickle.dumps(value, 2))


def test_a_persistent_object_is_refused() -> None:
    with pytest.raises(ForbiddenNameError, match="persistent object"):
        load_plain(b"\x80\x02U\x01xQ.")


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_a_pickle_that_breaks_off_is_no_crash(length: int) -> None:
    with pytest.raises(BrokenPickleError):
        load_plain(pickle.dumps(PLAIN["pg_config"] or {"a": "b" * 50}, 2)[:length])


def test_an_import_says_what_the_pickle_wanted(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Runs(os.system, "true")]}, 2))
    with pytest.raises(TraceError) as raised:
        import_trace([path])
    assert str(raised.value).splitlines() == [
        f"cannot import {path}",
        f"  found: a pickle that loads {os.system.__module__}.system",
        "  why: a dump holds plain values only; anything else could run code and was not loaded",
        "  try: check the origin of the file before opening it with another tool",
    ]


def test_values_that_contain_themselves_or_each_other_without_end_are_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(RecursionError):
        load_plain(pickle.dumps(circle))
    shared: list[Any] = []
    for _ in range(40):
        shared = [shared] * 10
    with pytest.raises(MoreThanError):
        load_plain(pickle.dumps(shared))


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02]r\xff\xff\xff\x7f.", b"]p99999999999\n.", b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00.",
     b"\x80\x02T\xff\xff\xff\x7f.", b"\x80\x04]", b"\x80\x04\xff."],
)  # fmt: skip
def test_a_pickle_that_asks_for_more_than_its_bytes_hold_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenPickleError):
        load_plain(data)
