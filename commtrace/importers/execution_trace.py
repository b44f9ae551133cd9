"""Importer of torch's ExecutionTraces, one file per rank.

    {"schema": "1.1.1-chakra.0.0.4", "pid": 4711, "nodes": [
       {"id": 91, "name": "c10d::allreduce_", "ctrl_deps": 2,
        "inputs": {"values": [...], "shapes": [[[8, 8]], ...], "types": [...]}, "outputs": ...,
        "attrs": [{"name": "tid", "type": "uint64", "value": 1}, ...]},
       {"id": 92, "name": "record_param_comms", "ctrl_deps": 91, ...,
        "attrs": [..., {"name": "collective_name", "type": "string", "value": "allreduce"}, ...]}]}

A node is an operator or an annotation, inside of the node `ctrl_deps`; ids are given in the order
in which operators begin. It has no time. Nodes become events of a profile whose times are their
places in that order, so that calls are found as in traces of torch.profiler; times stay unknown.
Source: torch/csrc/profiler/standalone/execution_trace_observer.cpp of torch 2.0 to 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from commtrace.device_kernels import recognizer
from commtrace.errors import NotATraceError
from commtrace.importers.input_files import Document
from commtrace.importers.kineto.importer import ReadFile, Unlocated, matched
from commtrace.importers.kineto.rows import Found, Profile
from commtrace.importers.kineto.spans import COLLECTIVE_NAME, Gathered, gather
from commtrace.importers.rank_record import Imported, RankRecord
from commtrace.schema import MAX_RANKS
from commtrace.settings import settings_of
from commtrace.tracefile.reading import is_int, parse_json

_ATTRIBUTES = {
    "collective_name": COLLECTIVE_NAME, "dtype": "dtype", "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems", "in_split_size": "In split size",
    "out_split_size": "Out split size", "global_rank_start": "Global rank start",
    "global_rank_stride": "Global rank stride", "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description", "pg_size": "Group size",
    "is_asynchronized_op": "Is asynchronized op",
}  # fmt: skip
"""Attributes of a described call, with the names of the same fields in a profile."""

_GROUPS = "## process_group:init ##"
_PREFIX = "[pytorch|profiler|execution_trace|"
_OF_WORKERS = ("gloo:", "mpi:", "ucc:")
_ELEMENT = re.compile(r"Tensor\(([\w: ]{1,40})\)")
_MOST_CHARACTERS = 256

_TIMES = "times: calls have their order, but no begin, end, duration or blocked time"
_NO_LINES = Unlocated("source lines", "modules", "")


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """Contents of a file: events by the order of nodes, and the groups that it lists."""

    path: Path
    found: Gathered
    groups: list[dict[str, Any]]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Node:
    """One operator; `thread` is -1 if unknown."""

    number: int
    parent: int
    name: str
    thread: int
    args: Mapping[str, Any]


def read_execution_traces(documents: Sequence[Document]) -> Imported:
    """Import traces rank by rank, and list the missing information.

    The contents of the documents are those that `execution_of` returns.
    """
    read = [ReadFile(each, *_record_of(each)) for each in documents]
    return matched(read, [_TIMES], _NO_LINES)


def _record_of(document: Document) -> tuple[RankRecord, Found]:
    trace: ExecutionTrace = document.content
    about = {"distributedInfo": {"pg_config": trace.groups}}
    profile = Profile(trace.path, trace.found, about, trace.num_bytes, has_times=False)
    record, found = profile.record(max(document.rank_in_name, 0))
    record.device = ""  # a trace has no work of devices
    return record, found


def execution_of(document: Document) -> ExecutionTrace:
    """Return the contents of a file.

    Raises:
        NotATraceError: names the node with an impossible value.
    """
    values = document.content["nodes"]
    nodes: dict[int, _Node] = {}
    groups: list[dict[str, Any]] = []
    for place, value in enumerate(values):
        node = _node_of(value)
        if node is None or node.number in nodes:
            raise NotATraceError(
                f"cannot import {document.path}",
                place=f"nodes[{place}]",
                found="no node of an ExecutionTrace, with an id of its own, a name and a parent",
                why="its contents are not those that torch's ExecutionTraceObserver writes",
                attempt="record it again",
            )
        nodes[node.number] = node
        if node.name == _GROUPS:
            groups += _groups_in(value)
    found = gather(_events(nodes), recognizer(settings_of().kernels))
    pid = document.content.get("pid")
    found.pids = {pid} if is_int(pid) and 0 <= pid < 1 << 32 else set()
    return ExecutionTrace(document.path, found, groups, len(values) * _BYTES_PER_NODE)


_BYTES_PER_NODE = 500


def _node_of(value: Any) -> _Node | None:
    if not isinstance(value, dict):
        return None
    number, name = value.get("id"), value.get("name")
    parent = value.get("ctrl_deps", value.get("parent"))
    if not (is_int(number) and is_int(parent) and isinstance(name, str)):
        return None
    attributes = _attributes(value.get("attrs"))
    thread = attributes.get("tid", value.get("tid"))
    args = {_ATTRIBUTES[key]: each for key, each in attributes.items() if key in _ATTRIBUTES}
    args = args | _described(value, args) if args.get(COLLECTIVE_NAME) else _arguments(value)
    return _Node(number, parent, name, thread if is_int(thread) and thread >= 0 else -1, args)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a node whose values are numbers or short texts."""
    pairs = value if isinstance(value, list) else ()
    found = {
        each["name"]: each.get("value")
        for each in pairs
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    return {
        key: each
        for key, each in found.items()
        if is_int(each) or (isinstance(each, (bool, str)) and len(str(each)) < _MOST_LIST)
    }


_MOST_LIST = 1 << 20


def _inputs(value: Mapping[str, Any], key: str) -> list[Any]:
    inputs = value.get("inputs")
    found = inputs.get(key) if isinstance(inputs, dict) else value.get(f"input_{key}")
    return found if isinstance(found, list) else []


def _described(value: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rank in the group and the number of a described call, which are its inputs.

    They are, in order: tensors, number and flag, the group's names, the rank, and the name.
    """
    values = _inputs(value, "values")
    name = args[COLLECTIVE_NAME]
    places = [place for place, each in enumerate(values) if isinstance(each, str) and each == name]
    if not places or places[0] < 3:
        return {}
    sequence, _, rank = values[places[0] - 3 : places[0]]
    found = {"Rank": rank} if is_int(rank) and rank >= 0 else {}
    if isinstance(sequence, list) and len(sequence) == 2 and is_int(sequence[0]):
        found |= {"Seq": sequence[0]} if sequence[0] > 0 and sequence[1] is False else {}
    return found


def _arguments(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return shapes, element types and numbers of an operator, as in a profile."""
    types = [str(each)[:_MOST_CHARACTERS] for each in _inputs(value, "types")]
    elements = [_ELEMENT.search(each) for each in types]
    shapes = _inputs(value, "shapes")
    return {
        "Input type": [found[1] if found else "" for found in elements],
        "Input Dims": [
            _tensors(shape) if found else [] for shape, found in zip(shapes, elements, strict=False)
        ],
        "Concrete Inputs": [_number_text(each) for each in _inputs(value, "values")],
    }


def _number_text(value: Any) -> str:
    return str(value) if is_int(value) or isinstance(value, bool) else ""


def _tensors(shape: Any) -> list[Any]:
    """Return the shape of a tensor, or the shapes of a list of tensors, of whatever depth."""
    if not isinstance(shape, list) or all(is_int(size) and size >= 0 for size in shape):
        return shape if isinstance(shape, list) else []
    nested = [_tensors(each) for each in shape]
    flat: list[Any] = []
    for each in nested:
        is_shape = all(is_int(size) for size in each)
        flat += [each] if is_shape else each
    return flat


def _groups_in(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the process groups that a node lists, as `pg_config` of a profile."""
    found: dict[str, dict[str, Any]] = {}
    for text in _inputs(value, "values"):
        try:
            listed = parse_json(text) if isinstance(text, str) else []
        except (ValueError, RecursionError):
            continue
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and isinstance(each.get("pg_name"), (str, int)):
                found.setdefault(str(each["pg_name"]), _group_in(each))
    return list(found.values())


def _group_in(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group; the default group has all ranks, and lists none."""
    ranks, size = value.get("ranks"), value.get("pg_size", value.get("group_size"))
    is_list = isinstance(ranks, list) and all(is_int(r) and 0 <= r < MAX_RANKS for r in ranks)
    size = size if is_int(size) and 0 < size <= MAX_RANKS else None
    if not ranks and size and value.get("pg_desc") == "default_pg":
        ranks, is_list = list(range(size)), True
    texts = {key: str(value.get(key) or "") for key in ("pg_name", "pg_desc", "backend_config")}
    short = {key: text[:_MOST_CHARACTERS] for key, text in texts.items()}
    short["pg_name"] = str(value["pg_name"])[:_MOST_CHARACTERS]
    return {**short, "ranks": ranks if is_list else [], "pg_size": size}


def _events(nodes: Mapping[int, _Node]) -> Iterator[dict[str, Any]]:
    """Yield an event for each node, nested by parents, whose times are places in the order."""
    children: dict[int, list[int]] = {}
    for node in nodes.values():
        if node.parent != node.number and node.parent in nodes:
            children.setdefault(node.parent, []).append(node.number)
    roots = [node.number for node in nodes.values() if not _has_parent(node, nodes)]
    seen: set[int] = set()
    clock = count()
    # Nodes that are their own ancestors, in a damaged file, follow the others.
    for root in (*sorted(roots), *sorted(nodes)):
        open_nodes = [] if root in seen else [(root, -1, iter(sorted(children.get(root, ()))))]
        seen.add(root)
        begins = {root: next(clock)} if open_nodes else {}
        while open_nodes:
            number, thread, left = open_nodes[-1]
            node = nodes[number]
            thread = node.thread if node.thread >= 0 else thread
            child = next((each for each in left if each not in seen), None)
            if child is not None:
                seen.add(child)
                begins[child] = next(clock)
                open_nodes.append((child, thread, iter(sorted(children.get(child, ())))))
                continue
            open_nodes.pop()
            if not node.name.startswith((_PREFIX, _GROUPS, *_OF_WORKERS)):
                begin = begins[number]
                yield {
                    "ph": "X", "cat": "cpu_op", "name": node.name, "tid": max(thread, 0),
                    "ts": begin, "dur": next(clock) - begin, "args": node.args,
                }  # fmt: skip


def _has_parent(node: _Node, nodes: Mapping[int, _Node]) -> bool:
    return node.parent != node.number and node.parent in nodes
