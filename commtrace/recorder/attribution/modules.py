"""Tracker of the module being called, and of the module that created each backward operator.

While a recording is on, `torch.nn.Module.__call__` is replaced by a function that keeps the
innermost module call of the thread. It also marks the autograd sequence number from which new nodes
belong to which call. No module and no tensor gets a hook. A backward node carries the sequence
number of its forward, so that bisecting the marks finds the call that made it:

    marks   0: none   12: layers.0 #0   15: layers.0.wq #0   17: layers.0 #0   40: none
    node 16 was made by layers.0.wq #0, node 30 by layers.0 #0

A path is relative to the outermost module called. The first outermost module has the path ""; later
ones that are not part of it are prefixed with their class name. A module that its caller does not
have as a submodule is placed under the caller by its class name. A module created anew for each
call takes over the path of its predecessor once that is gone. A module that a compiler made of
another module's forward is attributed to its caller. Rows hold the path without the names that
wrappers insert (see `wrappers`), which is then the wrapper's path too.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.compiler import is_compiling
from torch.fx import GraphModule

from commtrace.recorder.attribution.pipelines import name_of_stage
from commtrace.recorder.clock import now
from commtrace.recorder.events.host_event import Raised
from commtrace.recorder.module_place import ModuleCall, Place, join
from commtrace.recorder.replaced import Replaced
from commtrace.recorder.thread_state import CURRENT, ModuleCalls, ThreadState
from commtrace.torch_internals.autograd import next_sequence_number
from commtrace.torch_internals.modules import modules_of, own_parameters

_MAX_MARKS = 1 << 17
_FEW_MARKS = 16
_NO_RANK = -1
_PACKAGE = __name__.partition(".")[0]
_TRACKED_CALL = "tracked_call"
_COMPILER = ("torch._dynamo", "torch._functorch", "torch._inductor")


class ModuleTracker:
    """Tracks module calls while installed."""

    def __init__(self, raised: Raised) -> None:
        self.raised = raised
        self._outside = Place.outside()
        self._roots: list[tuple[int, Place]] = []
        self._replaced = Replaced()
        self._newest: ModuleCalls | None = None
        self._is_newest_used = True
        self._num_new = 0
        self.first_call_ns = -1
        self._owners: dict[int, tuple[weakref.ref[Any], Place]] = {}
        self._num_strangers = 0

    def install(self) -> None:
        """Start tracking module calls of all threads."""
        self._replaced.replace(nn.Module, "__call__", partial(_tracked, self))

    def uninstall(self) -> None:
        """Restore `nn.Module.__call__`, unless someone has replaced it again since."""
        self._replaced.restore()

    def place_of(self, outer: ModuleCall | None, module: nn.Module) -> Place:
        """Return the place of a module that is called inside `outer` for the first time."""
        if outer is None:
            self.note_first_call()
        return self._placed(outer, module)

    def _placed(self, outer: ModuleCall | None, module: nn.Module) -> Place:
        parent = outer[0] if outer else self._outside
        try:
            place = self._find(outer, module)
        except Exception:  # a model's own `named_modules` may fail, or a module be half constructed
            place = Place(type(module).__name__, module, None, 0)
        parent.adopt(module, place)
        return place

    def known_place(self, outer: ModuleCall | None, module: nn.Module) -> Place | None:
        """Return the place of a module called inside `outer`; None before its first call there."""
        return (outer[0] if outer else self._outside).children.get(id(module))

    def place_ahead(self, module: nn.Module) -> Place:
        """Return the place of an outermost module that is about to be called."""
        return self.known_place(None, module) or self._placed(None, module)

    def note_first_call(self) -> None:
        """Note that the program calls its first module now, unless it has called one before."""
        if self.first_call_ns < 0:
            self.first_call_ns = now()

    def meet(self, modules: ModuleCalls) -> None:
        """Note the module calls of a thread that runs its first module."""
        self._num_new = 1 if self._is_newest_used else self._num_new + 1
        self._newest, self._is_newest_used = modules, False

    def _find(self, outer: ModuleCall | None, module: nn.Module, root_name: str = "") -> Place:
        if outer is not None:
            parent = outer[0]
            name = parent.name_of(module)
            if name is not None:
                return self._place_at(join(parent.path, name), module, parent.root)
            if isinstance(module, GraphModule):
                return _stand_in(parent, module)
        elif isinstance(module, GraphModule) and _is_run_by_compiler():
            return Place("", module, None, 0)  # made of a function; the first model keeps this path
        current = _current_rank()
        for rank, root in self._roots:
            name = root.name_of(module) if rank in (current, _NO_RANK) else None
            if name is not None:
                return self._place_at(join(root.path, name), module, root)
        if outer is not None:
            path = join(outer[0].path, type(module).__name__)
            return self._place_at(path, module, outer[0].root)
        return self._new_root(module, current, root_name)

    @staticmethod
    def _place_at(path: str, module: nn.Module, root: Place) -> Place:
        place = root if path == root.path else root.parts.get(path)
        if place is None or place.module() is not module:
            num_calls = 0 if place is None else place.num_calls
            place = root.parts[path] = Place(path, module, root, num_calls)
        return place

    def _new_root(self, module: nn.Module, current: int, name: str) -> Place:
        """Return a place for an outermost module, reusing one of a dead module of its class."""
        self._num_strangers = 0  # its parts may resolve unknown parameters
        taken = set()
        class_name = type(module).__name__
        for i, (rank, root) in enumerate(self._roots):
            if rank in (current, _NO_RANK):
                taken.add(root.path)
                if root.class_name == class_name and root.module() is None:
                    place = Place(root.path, module, None, root.num_calls)
                    place.parts = root.parts
                    self._roots[i] = (current, place)
                    return place
        if taken:
            name = name or name_of_stage() or class_name
        place = Place(_free_path(name, taken), module, None, 0)
        self._roots.append((current, place))
        return place

    def places(self) -> list[Place]:
        """Return the places of this rank's modules, each outermost module followed by its parts."""
        current = _current_rank()
        return [
            place
            for rank, root in list(self._roots)
            if rank in (current, _NO_RANK)
            for place in (root, *(part for part in list(root.parts.values()) if part is not root))
        ]

    def call_that_made(self, node: Any, state: ThreadState) -> ModuleCall | None:
        """Return the forward module call that made an autograd node; None if none did.

        `state` is the current thread's, which may work for the thread that called backward.
        """
        backward = state.backward
        seqs, calls = self._marks((backward.caller.thread or state).modules)
        seq = node._sequence_nr()
        # A pass goes back through the marks, of which there may be very many.
        end = min(backward.position + 1, len(seqs))
        begin = max(end - _FEW_MARKS, 0)
        if begin < end and seqs[begin] <= seq < seqs[end - 1]:
            position = bisect_right(seqs, seq, begin, end)
        else:
            position = bisect_right(seqs, seq)
        call = calls[position - 1] if position else None
        if 0 < position < len(seqs):  # the next nodes are likely to belong to the same call
            backward.made_from, backward.made_until = seqs[position - 1], seqs[position]
            backward.made_by, backward.position = call, position
        return call

    def owner_of(self, part: Any) -> ModuleCall | None:
        """Return the latest call of the owner of a parameter, or of module `part` itself."""
        known = self._owners.get(id(part))
        if known is None or known[0]() is not part:
            self._num_strangers += 1
            if self._num_strangers & (self._num_strangers - 1):  # as in `Place.name_of`
                return None
            self._learn_owners()
            known = self._owners.get(id(part))
        return (known[1], known[1].num_calls - 1) if known else None

    def wrapper_of(self, place: Place | None, cls: type[nn.Module]) -> Place | None:
        """Return the innermost `cls` module around a place; without a place, the only outermost."""
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
        """Return the call that a library communicates for: `inner` if it is a call of the unit.

        Otherwise the unit's next call if it `is_ahead`, as in prefetching, else its latest; `inner`
        if the unit is unknown.
        """
        if inner is not None and inner[0].module() in modules:
            return inner
        unit = self.owner_of(modules[0])
        if unit is None:
            return inner
        return (unit[0], unit[1] + 1) if is_ahead else unit

    def call_of_stage(self, module: nn.Module, name: str, *, is_ahead: bool) -> ModuleCall:
        """Return a stage's next or latest call; `name` is its path unless it is the first."""
        known = self._outside.children.get(id(module))
        if known is None or known.module() is not module:
            self.note_first_call()
            known = self._find(None, module, name)
            self._outside.adopt(module, known)
        return known, known.num_calls - (0 if is_ahead else 1)

    def _marks(self, modules: ModuleCalls) -> tuple[list[int], list[ModuleCall | None]]:
        """Return a thread's marks, or if it ran no module, the marks of the thread that did.

        If several threads ran modules since the last backward pass, no marks are returned: each
        numbers its own autograd nodes.
        """
        if not modules.mark_seqs and self._newest is not None and self._num_new == 1:
            modules, self._is_newest_used = self._newest, True
        return modules.mark_seqs, modules.mark_calls

    def _learn_owners(self) -> None:
        for _, root in self._roots:
            owner = root.module()
            if owner is not None:
                for name, module in modules_of(owner):
                    place = self._place_at(join(root.path, name), module, root)
                    for part in (module, *own_parameters(module)):
                        self._owners[id(part)] = (weakref.ref(part), place)


def _stand_in(parent: Place, module: nn.Module) -> Place:
    """Return a place that mimics its caller's, with the number of the call in progress."""
    place = Place(parent.path, module, parent.root, parent.num_calls - 1)
    place.class_name = parent.class_name
    return place


def _is_run_by_compiler() -> bool:
    """Return whether torch.compile itself calls the current module, which it has generated."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_COMPILER):
            return True
        if not name.startswith(("torch.", _PACKAGE)):
            return False
        frame = frame.f_back
    return False


def _current_rank() -> int:
    """Return the rank of this thread; in tests, threads of a process may play several."""
    return dist.get_rank() if dist.is_initialized() else _NO_RANK


def _free_path(name: str, taken: set[str]) -> str:
    """Return an unused path for an outermost module: empty for the first, else its name."""
    if not taken:
        return ""
    path, number = name, 1
    while path in taken:
        number += 1
        path = f"{name}#{number}"
    return path


def _tracked(tracker: ModuleTracker, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an instrumented `nn.Module.__call__`.

    It runs for each call of each module, communicating or not. Hence no attribute is looked up
    twice, only a tuple is allocated, and torch's own `__call__`, which only selects
    between two methods, is bypassed.
    """
    is_torchs = original is vars(nn.Module).get("_wrapped_call_impl")
    next_seq = next_sequence_number
    outside = tracker._outside

    def tracked_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # True while dynamo traces, so that nothing of what follows becomes part of the graph.
        if is_compiling():
            return original(self, *args, **kwargs)
        modules = CURRENT.modules
        outer = modules.innermost
        place = (outer[0] if outer else outside).children.get(id(self))
        if place is None:
            place = tracker.place_of(outer, self)
        number = place.num_calls
        place.num_calls = number + 1
        # One tuple per call: calls are compared by identity.
        modules.innermost = call = (place, number)
        seqs, calls = modules.mark_seqs, modules.mark_calls
        if not seqs:
            tracker.meet(modules)
        seqs.append(next_seq())
        calls.append(call)
        try:
            if is_torchs:
                return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
            return original(self, *args, **kwargs)
        except BaseException as error:
            if outer is None:
                tracker.raised(error)
            raise
        finally:
            modules.innermost = outer
            seqs.append(next_seq())
            calls.append(outer)
            if outer is None and len(seqs) > _MAX_MARKS:
                del seqs[: _MAX_MARKS // 2], calls[: _MAX_MARKS // 2]

    return tracked_call


def call_around(
    frame: FrameType | None, end: FrameType | None, inner: ModuleCall | None
) -> ModuleCall | None:
    """Return the module call in progress around the frames from `frame` up to `end`."""
    while frame is not end and frame is not None:
        if frame.f_code.co_name == _TRACKED_CALL and frame.f_globals is globals():
            inner = frame.f_locals["outer"]
        frame = frame.f_back
    return inner
