"""Comparison of the collectives that ranks have compiled, before they run.

A compiler decides by the sizes of its own rank's tensors, and ranks whose graphs have different
collectives wait for each other forever. Ranks that compile the same program (the operators that
dynamo traced, with their constants and the layouts of the DTensors among their inputs) must compile
the same collectives of each process group. They compare them in the store of the default group once
a backend has compiled a graph, which includes inductor's own passes.

A rank waits only for ranks of a mesh of the program, only when it compiles such operators and
layouts for the first time, and at most `SECONDS`; afterwards it goes on. Nothing is compared in
fake worlds and on ranks that are threads. Installed by `collectives` when a collective is traced.

The sizes of a rank's tensors decide which results its backward recomputes, and thus which results
of a checkpoint it needs. If a layout of a program has uneven or empty shards, no rank repeats
collectives of a checkpoint in its backward: all save the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dtensor_core.errors import CompilationError
from dtensor_core.spec import Spec
from dtensor_core.torch_internals import compilation
from dtensor_core.torch_internals.dispatcher import no_dispatch_modes
from dtensor_core.torch_internals.groups import default_store, resolve_group

SECONDS = "DTENSOR_CORE_COMPILE_CHECK_SECONDS"
"""The environment variable with the time limit of a comparison in seconds; 0 turns it off."""
_LIMIT_S = 30.0

_SYMBOLIC = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_GENERATED = re.compile(r"_c10d_functional\.(\w+)\.default\((.*)\)")
_QUOTED = re.compile(r"'([^']*)'")

Sent = dict[tuple[int, ...], list[str]]
"""Collectives in order, by the ranks of their group: `all_reduce sum float32[8]`."""


@dataclass(slots=True)
class _Memory:
    """The operators and layouts that this rank has compiled, and its comparisons with outcome."""

    compiled: set[str] = field(default_factory=set)
    outcomes: dict[str, tuple[Sent, CompilationError | None]] = field(default_factory=dict)


# By the store, which a program replaces when it initializes its groups again.
_memories: WeakKeyDictionary[Any, _Memory] = WeakKeyDictionary()


class _Here(threading.local):
    """True if a layout with uneven shards was redistributed since the last program of a thread."""

    is_uneven = False


_here = _Here()


@cache
def compare_compilations() -> None:
    """Compare all programs with DTensors that are compiled from now on."""
    compilation.keep_unused()
    compilation.call_after_compiling(_watch)


def note_layouts(*specs: Spec) -> None:
    """Note layouts between which a program that is being traced redistributes."""
    if not all(spec.is_even for spec in specs):
        _here.is_uneven = True


def _watch(
    title: str, program: torch.fx.GraphModule, traced: torch.fx.Graph
) -> Callable[..., Any] | None:
    with no_dispatch_modes():
        specs = [getattr(value, "_spec", None) for _, value in _values(program)]
    note_layouts(*(spec for spec in specs if isinstance(spec, Spec)))
    collectives = [node for node, *_ in _collectives(traced)]
    if _here.is_uneven:
        compilation.save_in_checkpoints(collectives)
    _here.is_uneven = False
    compilation.keep_in_forward(collectives)
    return _comparison(title, program, traced)


def _comparison(
    title: str, program: torch.fx.GraphModule, traced: torch.fx.Graph
) -> Callable[..., Any] | None:
    """Return the function that compiles and compares the graphs of a program.

    It is None if there is nothing to compare: the program has no DTensors or no collectives, or
    the ranks are not processes.
    """
    if not dist.is_initialized() or type(dist.group.WORLD) is not dist.ProcessGroup:
        return None
    limit_s = _limit_s()
    with no_dispatch_modes():
        meshes = {mesh for _, value in _values(program) for mesh in _mesh_ranks(value)}
    # The groups to compare in each part, by the ranks of the mesh.
    sending: dict[tuple[str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    for node, group, _ in _collectives(traced):
        for part in _parts(node):
            for ranks in meshes:
                if set(group) <= set(ranks):
                    sending.setdefault((part, ranks), set()).add(group)
    if not limit_s or not sending or dist.get_backend() == "fake":
        return None
    operators = _digest(_text(node, value) for node, value in _values(program))
    constants = _digest(str((node.args, node.kwargs)) for node, _ in _values(program))

    def compile_and_compare(part: str, graph: torch.fx.Graph, compiler: Callable[[], Any]) -> Any:
        sent: Sent = {}
        for _, group, text in _collectives(graph):
            sent.setdefault(group, []).append(text)
        compiled = compiler()
        sent = _generated(compiled, sent)
        comparisons = [
            _Comparison(title, part, ranks, operators, constants, _within(ranks, groups, sent))
            for (each, ranks), groups in sorted(sending.items())
            if each == part
        ]
        for comparison in comparisons:
            comparison.publish()
        deadline = time.monotonic() + limit_s
        for comparison in comparisons:
            comparison.conclude(deadline, limit_s)
        return compiled

    return compile_and_compare


def _limit_s() -> float:
    text = os.environ.get(SECONDS, str(_LIMIT_S))
    try:
        return max(float(text), 0.0)
    except ValueError:
        raise CompilationError(
            "torch.compile of a program with DTensors",
            found=f"{SECONDS}={text!r}",
            why="it is the time limit in seconds of the comparison of what ranks have compiled",
            hint=f"a number such as {_LIMIT_S:g}, or 0 to compare nothing",
        ) from None


class _Comparison:
    """The comparison of a graph among the ranks of a mesh, through the default group's store.

    | key | value |
    | --- | --- |
    | `{operators}/arrived` | the number of ranks that have compiled these operators and layouts |
    | `{program}/{group}` | the collectives of the rank that was first |
    | `{program}/differing` | the number of differences, each in `{program}/differing/{number}` |
    """

    def __init__(
        self,
        title: str,
        part: str,
        ranks: tuple[int, ...],
        operators: str,
        constants: str,
        sent: Sent,
    ) -> None:
        self._title, self._part, self._ranks = title, part, ranks
        self._store = default_store()
        self._memory = _memories.setdefault(self._store, _Memory())
        self._operators = f"dtensor_core/compiled/{_digest([operators, part, str(ranks)])}"
        self._program = f"{self._operators}/{constants}"
        self._sent = sent
        self._is_new = self._operators not in self._memory.compiled
        self._is_known = self._program in self._memory.outcomes

    def publish(self) -> None:
        """Write the collectives of this rank to the store, then its arrival."""
        if self._is_known:
            return
        for group, texts in self._sent.items():
            key = f"{self._program}/{group}"
            first = json.loads(self._store.compare_set(key, "", json.dumps(texts)))
            if first != texts:
                number = self._store.add(f"{self._program}/differing", 1)
                difference = json.dumps([dist.get_rank(), _difference(group, first, texts)])
                self._store.set(f"{self._program}/differing/{number}", difference)
        if self._is_new:
            self._memory.compiled.add(self._operators)
            self._store.add(f"{self._operators}/arrived", 1)

    def conclude(self, deadline: float, limit_s: float) -> None:
        """Raise CompilationError if a rank differs, once all have arrived or the time is over."""
        if self._is_known:
            sent, error = self._memory.outcomes[self._program]
            # Something else than the program decides if its collectives have changed: unknown.
            if error is not None and sent == self._sent:
                raise error
            return
        if self._is_new and not self._have_all_arrived(deadline):
            warnings.warn(
                f"torch.compile of {self._title}: some of ranks {_listed(self._ranks)} have not "
                f"compiled it within {limit_s:g} s, so its collectives are not compared with "
                f"theirs; {SECONDS}=0 turns the comparison off",
                stacklevel=2,
            )
        error = self._error()
        self._memory.outcomes[self._program] = self._sent, error
        if error is not None:
            raise error

    def _have_all_arrived(self, deadline: float) -> bool:
        pause_s = 0.0005
        while self._store.add(f"{self._operators}/arrived", 0) < len(self._ranks):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return True

    def _error(self) -> CompilationError | None:
        count = self._store.add(f"{self._program}/differing", 0)
        keys = (f"{self._program}/differing/{number}" for number in range(1, count + 1))
        ranks: dict[str, list[int]] = {}
        for rank, difference in sorted(json.loads(self._store.get(key)) for key in keys):
            ranks.setdefault(difference, []).append(rank)
        if not ranks:
            return None
        found = [
            text.format(f"rank{'s' * (len(where) > 1)} {_listed(where)}")
            for text, where in ranks.items()
        ]
        return CompilationError(
            f"torch.compile of {self._title}: ranks have compiled different collectives",
            found=f"in the {self._part} graph, " + "; ".join(found[:4]),
            why="they would wait for each other forever: a pass of the compiler has decided by "
            "the sizes of this rank's tensors alone, or ranks have other settings",
            hint="set the compiler alike on all ranks, without passes that bucket, reorder or "
            f"recompute collectives; {SECONDS}=0 turns this check off",
        )


def _within(ranks: tuple[int, ...], groups: Iterable[tuple[int, ...]], sent: Sent) -> Sent:
    """Return the collectives of the groups of a mesh, also of those that have lost all."""
    sent = {group: [] for group in groups} | sent
    return {group: sent[group] for group in sorted(sent) if set(group) <= set(ranks)}


def _difference(group: tuple[int, ...], first: Sequence[str], mine: Sequence[str]) -> str:
    """Describe the first call of a group that differs from the first rank's.

    The ranks that make it are still to be named.
    """
    shared = min(len(first), len(mine))
    place = next((n for n in range(shared) if first[n] != mine[n]), shared)
    there, here = (each[place] if place < len(each) else "none" for each in (first, mine))
    named = f"call {place + 1} of the group of ranks {_listed(group)}"
    return f"{named} is {here} on {{}}, {there} elsewhere"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, … {ranks[-1]}"


def _values(program: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, Any]]:
    """Yield the nodes of a program and of the programs in it, each with its example value."""
    for module in program.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                value = node.meta.get("example_value")
                # Sizes of plain tensors become numbers of a program when they change.
                if not isinstance(value, _SYMBOLIC):
                    yield node, value


def _mesh_ranks(value: Any) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of a DTensor's mesh, if it has several and this rank is on it."""
    spec = getattr(value, "_spec", None)
    if isinstance(spec, Spec) and spec.coords is not None and spec.mesh.size() > 1:
        yield tuple(sorted(spec.mesh.mesh.flatten().tolist()))


def _text(node: torch.fx.Node, value: Any) -> str:
    spec = getattr(value, "_spec", None)
    if isinstance(spec, Spec):
        layout = spec.text
    else:
        layout = f"{value.dtype} {value.ndim}" if isinstance(value, torch.Tensor) else ""
    return f"{node.op} {node.target} {layout} {getattr(value, 'requires_grad', '')}"


def _parts(node: torch.fx.Node) -> Iterator[str]:
    """Yield the graphs that a traced collective may be part of."""
    is_backward = "backward" in node.meta.get("partitioner_tag", "")
    yield "inference"
    yield "backward" if is_backward else "forward"
    if not is_backward and node.meta.get("recompute") is not None:
        yield "backward"


def _collectives(
    graph: torch.fx.Graph,
) -> Iterator[tuple[torch.fx.Node, tuple[int, ...], str]]:
    """Yield the collectives of a graph, each with the ranks of its group and its text."""
    for node in graph.nodes:
        namespace, _, rest = str(node.target).partition(".")
        name, constants = rest.partition(".")[0], [a for a in node.args if isinstance(a, str)]
        if namespace == "_c10d_functional" and name != "wait_tensor" and constants:
            *reduce_op, group = constants
            # Ranks may send different sizes by all_to_all.
            sizes = "" if name == "all_to_all_single" else _sizes(node.args[0])
            yield node, _ranks(group), " ".join([name, *reduce_op, sizes]).rstrip()


def _ranks(group: str) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(resolve_group(group)))


def _sizes(tensors: Any) -> str:
    """Return dtype and number of elements of a tensor, or of each in a list."""
    nodes = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    values = [node.meta["val"] for node in nodes]
    counts = (n if type(n := value.numel()) is int else "" for value in values)
    types = (str(value.dtype).removeprefix("torch.") for value in values)
    return " ".join(f"{dtype}[{count}]" for dtype, count in zip(types, counts, strict=True))


def _generated(compiled: Any, sent: Sent) -> Sent:
    """Return the collectives in the code that inductor generated, if its passes changed them."""
    made: Sent = {}
    for name, args in _GENERATED.findall(getattr(compiled, "source_code", None) or ""):
        if name != "wait_tensor":
            group = _ranks(_QUOTED.findall(args)[-1])
            made.setdefault(group, []).append(name.removesuffix("_out").removesuffix("_"))
    names = {group: [text.partition(" ")[0] for text in texts] for group, texts in sent.items()}
    return made if made and made != names else sent


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha1(_ADDRESS.sub("", "\n".join(texts)).encode()).hexdigest()
