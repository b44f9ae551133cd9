"""Calls of the program that wait for other ranks through the store: creation of groups, and others.

| kind | functions | kept |
| --- | --- | --- |
| new_group | `new_group`, also of meshes and subgroups; `ProcessGroup.split_group` | always |
| init_process_group | `init_process_group` | always |
| destroy_process_group | `destroy_process_group`, `ProcessGroup.shutdown` | always |
| store | `wait`, `get`, `barrier` and others of a `Store`, called from Python | from 0.5 s on |

Functions below the public functions are replaced where they exist, so that names that a program
imported before are covered too. Calls made within another of these are parts of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import torch.distributed as dist

from commtrace.group_request import GroupRequest, text_of_request
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events.note import note_here, users_at
from commtrace.recorder.host_events.ongoing import LONG_NS, Ongoing
from commtrace.recorder.replaced import Replaced
from commtrace.schema import DESTROY_PROCESS_GROUP, INIT_PROCESS_GROUP, NEW_GROUP, STORE

_Args = Sequence[Any]
_Options = Mapping[str, Any]
Describe = Callable[[_Args, _Options, Any], str]
"""Returns the text of a call from its arguments, and its result, or None while it goes on."""

_STORE_METHODS = ("wait", "get", "multi_get", "barrier", "queue_pop")
_MOST_KEYS = 8


def _argument(place: int, name: str, args: _Args, options: _Options) -> Any:
    return args[place] if len(args) > place else options.get(name)


def _of_new_group(args: _Args, options: _Options, result: Any) -> str:
    ranks = _argument(0, "ranks", args, options)
    return _text(ranks, _argument(2, "backend", args, options), result)


def _of_split_group(args: _Args, options: _Options, result: Any) -> str:
    parent, ranks = args[0], _argument(1, "ranks", args, options) or ()
    with suppress(KeyError, ValueError, RuntimeError, IndexError):  # a group unknown to torch
        members = dist.get_process_group_ranks(parent)
        ranks = [members[each] for each in ranks]
    return _text(ranks, None, result)


def _text(ranks: Sequence[int] | None, backend: Any, result: Any) -> str:
    name = getattr(result, "group_name", "") if isinstance(result, dist.ProcessGroup) else ""
    members = None if ranks is None else tuple(map(int, ranks))
    return text_of_request(GroupRequest(members, str(backend or ""), name))


def _of_init(args: _Args, options: _Options, result: Any) -> str:
    backend = _argument(0, "backend", args, options)
    return f"backend={backend}" if backend else ""


def _of_destroy(args: _Args, options: _Options, result: Any) -> str:
    group = _argument(0, "group", args, options)
    name = getattr(group, "group_name", "")
    return f"name={name}" if name else ""


def _of_store(name: str) -> Describe:
    def describe(args: _Args, options: _Options, result: Any) -> str:
        keys = args[1] if len(args) > 1 else options.get("keys", options.get("key", ""))
        listed = [keys] if isinstance(keys, (str, bytes)) else list(keys)
        more = " ..." if len(listed) > _MOST_KEYS else ""
        words = [key.decode(errors="replace") if isinstance(key, bytes) else str(key)
                 for key in listed[:_MOST_KEYS]]  # fmt: skip
        return f"{name} {', '.join(words)}{more}"

    return describe


def _functions() -> list[tuple[Any, str, str, Describe, int]]:
    """Return the functions to replace: owner, name, kind, text, least duration to be kept."""
    c10d: Any = dist.distributed_c10d
    group, store = getattr(dist, "ProcessGroup", None), getattr(dist, "Store", None)
    return [
        (c10d, "_new_group_with_tag", NEW_GROUP, _of_new_group, 0),
        (group, "split_group", NEW_GROUP, _of_split_group, 0),
        *((owner, "init_process_group", INIT_PROCESS_GROUP, _of_init, 0) for owner in (c10d, dist)),
        *(
            (owner, "destroy_process_group", DESTROY_PROCESS_GROUP, _of_destroy, 0)
            for owner in (c10d, dist)
        ),
        (group, "shutdown", DESTROY_PROCESS_GROUP, _of_destroy, 0),
        *((store, name, STORE, _of_store(name), LONG_NS) for name in _STORE_METHODS),
    ]


class StoreCalls:
    """Source of the calls that wait for other ranks through the store."""

    def __init__(self, ongoing: Ongoing) -> None:
        self._ongoing = ongoing
        self._replaced = Replaced()
        self._is_on = False
        self._thread = threading.local()

    def install(self) -> None:
        """Replace the functions, unless they are replaced."""
        if self._is_on or not dist.is_available():
            return
        self._is_on = True
        for owner, name, kind, describe, least_ns in _functions():
            if owner is not None and name in vars(owner):
                observed = partial(self._observed, kind=kind, describe=describe, least_ns=least_ns)
                self._replaced.replace(owner, name, observed)

    def uninstall(self) -> None:
        """Restore them, unless someone has replaced them again since."""
        self._is_on = False
        self._replaced.restore()

    def _observed(
        self, function: Callable[..., Any], kind: str, describe: Describe, least_ns: int
    ) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not self._is_on or getattr(self._thread, "is_in_call", False):
                return function(*args, **options)
            event = note_here(kind)
            if kind == DESTROY_PROCESS_GROUP and event.code is None:
                return function(*args, **options)  # by commtrace itself, when the program is over
            if kind in (NEW_GROUP, STORE):
                event.stack = users_at(sys._getframe(1))
            event.text = _described(describe, args, options, None)
            self._thread.is_in_call = True
            self._ongoing.begin(event)
            try:
                result = function(*args, **options)
            except BaseException as error:
                event.text = f"{event.text} raised={type(error).__name__}".strip()
                raise
            else:
                event.text = _described(describe, args, options, result)
                return result
            finally:
                self._thread.is_in_call = False
                self._end(event, least_ns)

        return call

    def _end(self, event: HostEvent, least_ns: int) -> None:
        self._ongoing.end(event, least_ns)


def _described(describe: Describe, args: _Args, options: _Options, result: Any) -> str:
    try:
        return describe(args, options, result)
    except Exception:  # arguments that the function itself refuses
        return ""
