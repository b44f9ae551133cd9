"""Which module is being called, and which one an operator of the backward pass came from.

While a recording is on, `torch.nn.Module.__call__` is replaced by a function that keeps the
innermost module call of the thread, and notes from which autograd sequence number on new nodes are
made by which call; no module and no tensor gets a hook. A node of the backward pass carries the
number it was given in the forward pass, so that bisecting the marks finds the call that made it:

    marks   0: none   12: layers.0 #0   15: layers.0.wq #0   17: layers.0 #0   40: none
    node 16 was made by layers.0.wq #0, node 30 by layers.0 #0

A path is relative to the outermost module called. The first outermost module has the path "";
further ones that are not a part of it have their class's name in front. A module that a parent
calls without having it as a submodule is put under it by its class's name. A module made anew for
each call takes over the path of the last one, once that is gone. What a compiler made of a module's
forward, where it is a module too, stands for the one that calls it. Rows have the path without the
names that wrappers put into it (see `wrappers`), which is then that of the wrapper too.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_compiling
from torch.fx import GraphModule

from commtrace.recorder.clock import now
from commtrace.recorder.pipelines import name_of_stage
from commtrace.recorder.thread_state import HERE, ThreadState
from commtrace.recorder.wrappers import plain_path

_MAX_MARKS = 1 << 17
_NO_RANK = -1
_PACKAGE = __name__.partition(".")[0]
_FOLLOWING = "following"
_COMPILER = ("torch._dynamo", "torch._functorch", "torch._inductor")

ModuleCall = tuple["Place", int]
"""A place and the number of the call."""


class Place:
    """A module as reached by one path; `num_calls` counts its calls from 0.

    `plain` is the path as rows have it, without the names that belong to wrappers.
    `parts` are the places below an outermost module by their path, the same for all of them.
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
        self.module = weakref.ref(module)
        self.root = root or self
        self.plain = plain_path(self.root.module(), path.removeprefix(self.root.path).lstrip("."))
        if self.root.path:
            self.plain = _join(self.root.path, self.plain)
        self.parts: dict[str, Place] = root.parts if root else {}
        self.num_calls = num_calls
        self.children: dict[int, Place] = {}
        self._watched: dict[int, weakref.ref[nn.Module]] = {}
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._num_misses = 0

    def name_of(self, module: nn.Module) -> str | None:
        """The path of `module` below this one, the shortest of several; None if it is not there.

        Names are looked up once. For a module that is not among them they are looked up again, but
        ever more seldom: some programs make a new module for each call.
        """
        known = self._names.get(id(module))
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
            named = list(owner.named_modules(remove_duplicate=False))
            for name, each in sorted(reversed(named), key=_depth, reverse=True):
                self._names[id(each)] = (weakref.ref(each), name)

    def adopt(self, module: nn.Module, place: Place) -> None:
        """Remember that `module`, called from here, is found at `place`, as long as it lives."""
        key = id(module)
        children, watched = self.children, self._watched

        def forget(_: object) -> None:
            children.pop(key, None)
            watched.pop(key, None)

        watched[key] = weakref.ref(module, forget)
        children[key] = place


class ModuleTracker:
    """Follows module calls while installed."""

    def __init__(self) -> None:
        self._outside: Any = Place.__new__(Place)
        self._outside.children, self._outside._watched = {}, {}
        self._roots: list[tuple[int, Place]] = []
        self._replaced: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._newest_state: ThreadState | None = None
        self._is_newest_used = True
        self._num_new = 0
        self.first_call_ns = -1
        self._owners: dict[int, tuple[weakref.ref[Any], Place]] = {}
        self._num_strangers = 0

    def install(self) -> None:
        """Begin to follow module calls, of all threads."""
        original = nn.Module.__call__
        following = _following(self, original)
        self._replaced = (following, original)
        nn.Module.__call__ = following  # type: ignore[method-assign]

    def uninstall(self) -> None:
        """Put back what was replaced, unless someone replaced it again in the meantime."""
        if self._replaced is not None:
            following, original = self._replaced
            if nn.Module.__call__ is following:
                nn.Module.__call__ = original  # type: ignore[method-assign]
        self._replaced = None

    def place_of(self, outer: ModuleCall | None, module: nn.Module) -> Place:
        """The place of a module that is called inside of `outer` for the first time."""
        parent = outer[0] if outer else self._outside
        try:
            place = self._find(outer, module)
        except Exception:  # a model's own `named_modules` may fail, or a module be half made
            place = Place(type(module).__name__, module, None, 0)
        parent.adopt(module, place)
        return place

    def meet(self, state: ThreadState) -> None:
        """A thread runs its first module."""
        self._num_new = 1 if self._is_newest_used else self._num_new + 1
        self._newest_state, self._is_newest_used = state, False

    def _find(self, outer: ModuleCall | None, module: nn.Module, root_name: str = "") -> Place:
        if outer is not None:
            parent = outer[0]
            name = parent.name_of(module)
            if name is not None:
                return self._place_at(_join(parent.path, name), module, parent.root)
            if isinstance(module, GraphModule):
                return _stand_in(parent, module)
        elif isinstance(module, GraphModule) and _is_run_by_compiler():
            return Place("", module, None, 0)  # of a function; the first model keeps this path
        here = _rank_here()
        for rank, root in self._roots:
            name = root.name_of(module) if rank in (here, _NO_RANK) else None
            if name is not None:
                return self._place_at(_join(root.path, name), module, root)
        if outer is not None:
            path = _join(outer[0].path, type(module).__name__)
            return self._place_at(path, module, outer[0].root)
        return self._new_root(module, here, root_name)

    @staticmethod
    def _place_at(path: str, module: nn.Module, root: Place) -> Place:
        place = root if path == root.path else root.parts.get(path)
        if place is None or place.module() is not module:
            num_calls = 0 if place is None else place.num_calls
            place = root.parts[path] = Place(path, module, root, num_calls)
        return place

    def _new_root(self, module: nn.Module, here: int, name: str) -> Place:
        """The place of one more outermost module: that of a dead one of its class, or a new one."""
        self._num_strangers = 0  # its parts are worth a look
        if self.first_call_ns < 0:
            self.first_call_ns = now()
        taken = set()
        class_name = type(module).__name__
        for i, (rank, root) in enumerate(self._roots):
            if rank in (here, _NO_RANK):
                taken.add(root.path)
                if root.class_name == class_name and root.module() is None:
                    place = Place(root.path, module, None, root.num_calls)
                    place.parts = root.parts
                    self._roots[i] = (here, place)
                    return place
        if taken:
            name = name or name_of_stage() or class_name
        place = Place(_free_path(name, taken), module, None, 0)
        self._roots.append((here, place))
        return place

    def places(self) -> list[Place]:
        """The places of this rank's modules: an outermost one, then those below it, and so on."""
        here = _rank_here()
        return [
            place
            for rank, root in list(self._roots)
            if rank in (here, _NO_RANK)
            for place in (root, *(part for part in list(root.parts.values()) if part is not root))
        ]

    def call_that_made(self, node: Any, state: ThreadState) -> ModuleCall | None:
        """The module call of the forward pass that made an autograd node; None if none did.

        `state` is that of this thread, which may work for one that has called backward.
        """
        seqs, calls = self._marks(state.backward.caller or state)
        seq = node._sequence_nr()
        position = bisect_right(seqs, seq)
        call = calls[position - 1] if position else None
        if 0 < position < len(seqs):  # the next nodes are likely to be of the same call
            state.made_from, state.made_until = seqs[position - 1], seqs[position]
            state.made_by = call
        return call

    def owner_of(self, part: Any) -> ModuleCall | None:
        """The module that a parameter is held by, or that is meant itself, as its latest call."""
        known = self._owners.get(id(part))
        if known is None or known[0]() is not part:
            self._num_strangers += 1
            if self._num_strangers & (self._num_strangers - 1):  # as in `Place.name_of`
                return None
            self._learn_owners()
            known = self._owners.get(id(part))
        return (known[1], known[1].num_calls - 1) if known else None

    def wrapper_of(self, place: Place | None, cls: type[nn.Module]) -> Place | None:
        """The innermost module of a class around a place; around none, the only outermost one."""
        if place is None:
            found = [root for _, root in self._roots if isinstance(root.module(), cls)]
            return found[0] if len(found) == 1 else None
        tokens = place.path.split(".") if place.path else []
        paths = [".".join(tokens[:length]) for length in range(len(tokens), 0, -1)]
        around = [place.parts[path] for path in paths if path in place.parts]
        for each in (*around, place.root):
            if isinstance(each.module(), cls):
                return each
        return None

    def call_of_unit(
        self, modules: Sequence[nn.Module], inner: ModuleCall | None, *, is_ahead: bool
    ) -> ModuleCall | None:
        """The call of a unit of modules that something is done for: the one that is `inner` now.

        Otherwise the next one if that `is_ahead`, or else the latest; `inner` where none is known.
        """
        if inner is not None and inner[0].module() in modules:
            return inner
        unit = self.owner_of(modules[0])
        if unit is None:
            return inner
        return (unit[0], unit[1] + 1) if is_ahead else unit

    def call_of_stage(self, module: nn.Module, name: str, *, is_ahead: bool) -> ModuleCall:
        """The next or latest call of an outermost module; `name` is its path if not the first."""
        known = self._outside.children.get(id(module))
        if known is None or known.module() is not module:
            known = self._find(None, module, name)
            self._outside.adopt(module, known)
        return known, known.num_calls - (0 if is_ahead else 1)

    def _marks(self, state: ThreadState) -> tuple[list[int], list[ModuleCall | None]]:
        """The marks of a thread, or where it ran no module, those of the thread that did.

        Of several that did since the last backward pass it can't be told which: each counts its
        own autograd nodes.
        """
        if not state.mark_seqs and self._newest_state is not None and self._num_new == 1:
            state, self._is_newest_used = self._newest_state, True
        return state.mark_seqs, state.mark_calls

    def _learn_owners(self) -> None:
        for _, root in self._roots:
            owner = root.module()
            if owner is not None:
                for name, module in owner.named_modules():
                    place = self._place_at(_join(root.path, name), module, root)
                    for part in (module, *module.parameters(recurse=False)):
                        self._owners[id(part)] = (weakref.ref(part), place)


def _stand_in(parent: Place, module: nn.Module) -> Place:
    """A place that looks like its caller's, in the call of that which is in progress."""
    place = Place(parent.path, module, parent.root, parent.num_calls - 1)
    place.class_name = parent.class_name
    return place


def _is_run_by_compiler() -> bool:
    """Whether the module that is being called was made by torch.compile, which calls it itself."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_COMPILER):
            return True
        if not name.startswith(("torch.", _PACKAGE)):
            return False
        frame = frame.f_back
    return False


def _rank_here() -> int:
    """The rank of this thread: in tests, the threads of one process may play several."""
    return dist.get_rank() if dist.is_initialized() else _NO_RANK


def _free_path(name: str, taken: set[str]) -> str:
    """The path of one more outermost module: empty for the first, its name for others."""
    if not taken:
        return ""
    path, number = name, 1
    while path in taken:
        number += 1
        path = f"{name}#{number}"
    return path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _depth(named: tuple[str, nn.Module]) -> int:
    return named[0].count(".")


def _following(tracker: ModuleTracker, original: Callable[..., Any]) -> Callable[..., Any]:
    """`nn.Module.__call__` with the bookkeeping around it.

    This runs for each call of each module, communicating or not: hence no attribute is looked up
    twice, nothing is allocated but one tuple, and torch's own `__call__`, which only chooses
    between two methods, is left out.
    """
    is_torchs = original is vars(nn.Module).get("_wrapped_call_impl")
    next_seq = _get_sequence_nr
    outside = tracker._outside

    def following(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        state = HERE.state
        outer = state.module_call
        place = (outer[0] if outer else outside).children.get(id(self))
        if place is None:
            place = tracker.place_of(outer, self)
        number = place.num_calls
        place.num_calls = number + 1
        state.module_call = call = (place, number)
        seqs, calls = state.mark_seqs, state.mark_calls
        if not seqs:
            tracker.meet(state)
        seqs.append(next_seq())
        calls.append(call)
        try:
            if is_torchs:
                return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
            return original(self, *args, **kwargs)
        finally:
            state.module_call = outer
            seqs.append(next_seq())
            calls.append(outer)
            if outer is None and len(seqs) > _MAX_MARKS:
                del seqs[: _MAX_MARKS // 2], calls[: _MAX_MARKS // 2]

    return following


def call_around(
    frame: FrameType | None, end: FrameType | None, inner: ModuleCall | None
) -> ModuleCall | None:
    """The module call in progress below the frames from `frame` to before `end`, above `inner`."""
    while frame is not end and frame is not None:
        if frame.f_code.co_name == _FOLLOWING and frame.f_globals is globals():
            inner = frame.f_locals["outer"]
        frame = frame.f_back
    return inner
