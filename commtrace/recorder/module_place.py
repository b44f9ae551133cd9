"""Modules as the recorder refers to them: a place is a module as reached by one path.

`ModuleTracker` creates the places; threads, operators and calls refer to them.
"""

from __future__ import annotations

import weakref

from torch import nn

from commtrace.recorder.wrappers import plain_path
from commtrace.torch_internals.modules import modules_of

ModuleCall = tuple["Place", int]
"""A place and the number of the call."""


class Place:
    """A module as reached by one path; `num_calls` counts its calls from 0.

    `plain` is the path without wrapper names, as in rows. `parts` are the places below the
    outermost module by path, shared by all of them.
    """

    __slots__ = (
        "_names",
        "_num_misses",
        "_watched",
        "children",
        "class_name",
        "module",
        "num_calls",
        "parts",
        "path",
        "plain",
        "root",
    )

    def __init__(self, path: str, module: nn.Module, root: Place | None, num_calls: int) -> None:
        self.path = path
        self.class_name = type(module).__name__
        # Weak: a recording must not keep modules alive.
        self.module = weakref.ref(module)
        self.root = root or self
        self.plain = plain_path(self.root.module(), path.removeprefix(self.root.path).lstrip("."))
        if self.root.path:
            self.plain = join(self.root.path, self.plain)
        self.parts: dict[str, Place] = root.parts if root else {}
        self.num_calls = num_calls
        self.children: dict[int, Place] = {}
        self._watched: dict[int, weakref.ref[nn.Module]] = {}
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._num_misses = 0

    @classmethod
    def outside(cls) -> Place:
        """Return a place that has no module and only keeps the places adopted by it."""
        place = cls.__new__(cls)
        place.children, place._watched = {}, {}
        return place

    def name_of(self, module: nn.Module) -> str | None:
        """Return the shortest path of `module` below this place; None if it is not a submodule.

        Names are cached. A miss rebuilds the cache, but exponentially less often: some programs
        create a new module for each call.
        """
        known = self._names.get(id(module))
        # The identity may have been that of a module that is gone.
        if known is not None and known[0]() is module:
            return known[1]
        self._num_misses += 1
        if self._num_misses & (self._num_misses - 1):  # not a power of two
            return None
        self._learn_names()
        known = self._names.get(id(module))
        return known[1] if known is not None else None

    def _learn_names(self) -> None:
        owner = self.module()
        self._names = {}
        if owner is not None:
            named = list(modules_of(owner, each_path=True))
            # The last assignment wins: the shortest path, and of equals the first one.
            for name, each in sorted(reversed(named), key=_depth, reverse=True):
                self._names[id(each)] = (weakref.ref(each), name)

    def adopt(self, module: nn.Module, place: Place) -> None:
        """Cache that `module`, called from here, is found at `place`, for the module's lifetime."""
        key = id(module)
        children, watched = self.children, self._watched

        def forget(_: object) -> None:
            children.pop(key, None)
            watched.pop(key, None)

        watched[key] = weakref.ref(module, forget)
        children[key] = place


def join(path: str, name: str) -> str:
    """Return the path of `name` below `path`; both may be empty."""
    return f"{path}.{name}" if path and name else path or name


def _depth(named: tuple[str, nn.Module]) -> int:
    return named[0].count(".")
