"""Transport of a function to rank processes, and of its results back.

    parcel = pack(train, (model,), {})              in the process that has it
    call = unpack(parcel)                           in a rank
    keep_result(folder, rank, call())               in a rank
    results(folder, num_ranks)                      in the process that has it

A function of an importable module is pickled by name. One of a notebook, of a script or nested in
another function is pickled by value, with the variables and classes it uses, which needs the
package cloudpickle. The source lines of notebook cells are included, for tracebacks.
"""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import pickle
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from commtrace.errors import LaunchError, UsageError
from commtrace.permissions import opener

_RESULT_SUFFIX = ".result"


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pack a call of `function`, for `unpack` in another process of this machine.

    Raises:
        UsageError: the function, or something that it uses, cannot be pickled.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        call = _pickler().dumps(functools.partial(function, *args, **kwargs))
    except Exception as error:  # pickling can raise anything
        raise UsageError(
            f"cannot send {name} to the ranks",
            found=f"{type(error).__name__}: {error}",
            why="it is pickled by value, with every variable that it uses",
            attempt=_advice(),
        ) from None
    # The call is pickled on its own, since the rank must extend its path before it loads that.
    return pickle.dumps((_paths(), _lines_of_cells(), call))


def unpack(parcel: bytes) -> Callable[[], Any]:
    """Return the packed call, and extend `sys.path` by the sending process's entries.

    Raises:
        LaunchError: the call uses something that only the sending process has.
    """
    paths, lines, call = pickle.loads(parcel)
    sys.path[:] = list(dict.fromkeys([*paths, *sys.path]))
    for filename, of_file in lines.items():
        # Without a modification time, the entry survives `linecache.checkcache`.
        linecache.cache[filename] = (sum(map(len, of_file)), None, of_file, filename)
    try:
        return pickle.loads(call)
    except Exception as error:
        raise LaunchError(
            "cannot unpickle the function in this rank",
            found=f"{type(error).__name__}: {error}",
            attempt="import its dependencies from a module, or define them beside the function",
        ) from error


def keep_result(folder: Path, rank: int, value: Any) -> None:
    """Store the result of a rank in `folder`, for `results`.

    Raises:
        LaunchError: the result cannot be pickled.
    """
    try:
        packed = _pickler().dumps(value)
    except Exception as error:
        raise _result_error(rank, type(value).__name__, error) from error
    write_own(folder / f"rank-{rank:05d}{_RESULT_SUFFIX}", packed)


def results(folder: Path, num_ranks: int) -> tuple[Any, ...]:
    """Return the result of each rank, in order; None for a rank that ended by `sys.exit()`.

    Raises:
        LaunchError: a result cannot be unpickled in this process.
    """
    values = []
    for rank in range(num_ranks):
        path = folder / f"rank-{rank:05d}{_RESULT_SUFFIX}"
        try:
            values.append(pickle.loads(read_own(path)) if path.exists() else None)
        except LaunchError:
            raise
        except Exception as error:
            raise _result_error(rank, "something", error) from error
    return tuple(values)


def write_own(path: Path, data: bytes) -> None:
    """Write a pickle, for `read_own` in another process of the same user."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)


def read_own(path: Path) -> bytes:
    """Read a pickle that only this user can have written, since loading it runs its code.

    Raises:
        LaunchError: another user owns the file or its folder, or can write to it.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        # The open file is checked, since its path may lead to another one by now.
        for each in (os.fstat(file.fileno()), path.parent.stat()):
            if each.st_uid != os.geteuid() or each.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise LaunchError(
                    f"cannot load {path}",
                    found=f"owner {each.st_uid}, permissions {stat.filemode(each.st_mode)}",
                    why="anybody who can write there could run commands in this process",
                    attempt="a folder that only you can write to",
                )
        return file.read()


def _result_error(rank: int, type_name: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"cannot return the result of rank {rank}",
        found=f"{type_name}; {type(error).__name__}: {error}",
        attempt="return numbers, strings or plain tensors",
    )


def _pickler() -> ModuleType:
    """Return cloudpickle if installed, which handles functions outside modules, else pickle."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _advice() -> str:
    if _pickler() is pickle:
        return "pip install cloudpickle, or move the function to a module"
    return "create such objects in the function"


def _paths() -> list[str]:
    """Return this process's module search path in absolute form."""
    return [os.path.abspath(path or os.curdir) for path in sys.path]


def _lines_of_cells() -> dict[str, list[str]]:
    """Return the source lines of notebook cells, by the file names in tracebacks."""
    return {
        filename: entry[2]
        for filename, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None
    }
