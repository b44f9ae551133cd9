"""Objects that a function takes to another process, and the results that return."""

from __future__ import annotations

import linecache
import os
import pickle
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import LaunchError, UsageError
from commtrace.launching.pickling import keep_result, pack, results, unpack

SCALE = 3


def notebook_cell(source: str) -> dict[str, Any]:
    """Names that a cell defines, in a `__main__` without a file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "/tmp/ipykernel_1/2.py", "exec"), names)
    return names


def test_a_function_of_a_cell_goes_with_the_variables_and_functions_that_it_uses() -> None:
    cell = notebook_cell(
        "scale = 3\n"
        "def twice(x): return 2 * x\n"
        "def run(x, more):\n"
        "    inner = lambda y: twice(y) * scale + more\n"
        "    return inner(x)\n"
    )
    parcel = pack(cell["run"], (5,), {"more": 1})
    cell.clear()
    assert unpack(parcel)() == 31


def test_a_class_of_a_cell_comes_back_as_that_class(tmp_path: Path) -> None:
    cell = notebook_cell(
        "class Loss:\n    def __init__(self, value): self.value = value\n"
        "def run(): return Loss(0.5)\n"
    )
    keep_result(tmp_path, 0, unpack(pack(cell["run"], (), {}))())
    (value,) = results(tmp_path, 1)
    assert isinstance(value, cell["Loss"])
    assert value.value == 0.5


def test_a_rank_that_left_nothing_returned_nothing(tmp_path: Path) -> None:
    keep_result(tmp_path, 1, {"loss": 1.0})
    assert results(tmp_path, 2) == (None, {"loss": 1.0})


def test_paths_and_lines_of_cells_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "/tmp/ipykernel_1/3.py"
    lines = ["def run():\n", "    return 7\n"]
    monkeypatch.setitem(linecache.cache, name, (sum(map(len, lines)), None, lines, name))
    monkeypatch.setattr(sys, "path", [*sys.path, "/where/modules/are"])
    parcel = pack(len, ([],), {})
    monkeypatch.delitem(linecache.cache, name)
    monkeypatch.setattr(sys, "path", list(sys.path[:-1]))
    unpack(parcel)
    assert sys.path[-1] == "/where/modules/are"
    linecache.checkcache()
    assert linecache.getline(name, 2) == "    return 7\n"


def test_what_cannot_go_is_reported() -> None:
    lock = threading.Lock()

    def locked() -> Any:
        return lock

    with pytest.raises(UsageError) as error:
        pack(locked, (), {})
    assert str(error.value).splitlines()[1:] == [
        "  found: TypeError: cannot pickle '_thread.lock' object",
        "  why: it is pickled by value, with every variable that it uses",
        "  try: create such objects in the function",
    ]


def test_without_cloudpickle_a_modules_function_goes_and_a_local_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert unpack(pack(len, ([1, 2],), {}))() == 2
    with pytest.raises(UsageError, match="try: pip install cloudpickle, or move the function"):
        pack(lambda: 1, (), {})


def test_what_is_only_in_the_other_process_is_reported() -> None:
    def lost() -> None: ...

    @dataclass
    class Gone:
        def __reduce__(self) -> Any:
            return (__import__, ("no_such_module",))

    with pytest.raises(LaunchError) as error:
        unpack(pack(lost, (Gone(),), {}))
    assert str(error.value) == (
        "cannot unpickle the function in this rank\n"
        "  found: ModuleNotFoundError: No module named 'no_such_module'\n"
        "  try: import its dependencies from a module, or define them beside the function"
    )


def test_what_cannot_come_back_is_reported_by_both_sides(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot return the result of rank 2"):
        keep_result(tmp_path, 2, threading.Lock())
    path = tmp_path / "rank-00000.result"
    path.write_bytes(pickle.dumps(1)[:-1])
    with pytest.raises(LaunchError, match="cannot return the result of rank 0"):
        results(tmp_path, 1)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_pickle_that_others_could_have_written_is_not_loaded(which: str, tmp_path: Path) -> None:
    keep_result(tmp_path, 0, 1)
    assert results(tmp_path, 1) == (1,)
    path = tmp_path / "rank-00000.result" if which == "file" else tmp_path
    path.chmod(0o777)
    with pytest.raises(LaunchError, match=r"found: owner \d+, permissions .rwxrwxrwx"):
        results(tmp_path, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_pickle_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    keep_result(tmp_path, 0, 1)
    os.chown(tmp_path / "rank-00000.result", 12345, 12345)
    with pytest.raises(LaunchError, match="found: owner 12345"):
        results(tmp_path, 1)


def test_a_link_to_a_pickle_is_not_followed(tmp_path: Path) -> None:
    keep_result(tmp_path, 1, 1)
    (tmp_path / "rank-00000.result").symlink_to(tmp_path / "rank-00001.result")
    with pytest.raises(LaunchError, match="cannot return the result of rank 0"):
        results(tmp_path, 2)
