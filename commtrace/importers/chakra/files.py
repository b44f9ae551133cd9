"""Files of execution traces: messages, checked and as plain values.

    trace_of(document)  ─>  ChakraTrace(nodes in an order in which they can run), or GroupFile

Nothing in a file is trusted: a message that is cut off, a number that two nodes share, a type that
does not exist, a dependency on a node that the file lacks, or in a circle, is refused, and the
error states the place.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

from commtrace.chakra_messages import ENUMS, METADATA_NODE, messages
from commtrace.errors import InvalidTraceError
from commtrace.importers.input_files import Document
from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS
from commtrace.tracefile.reading import Allowance, is_int, parse_json

Value = int | float | bool | str | bytes | tuple[Any, ...]

_BYTES_OF_NODE = 600
_BYTES_OF_ATTRIBUTE = 300
_MOST_MICROS = MOST_INSTANT_NS // 1000
_LIST = "_list"
_WRITE_AGAIN = "copy the execution trace again, or write it again"


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node.

    Attributes:
        number: Its id.
        name: Its name.
        type: Value of `NodeType`.
        after: Ids in `ctrl_deps`.
        needs: Ids in `data_deps` that are not among these.
        start_us: `start_time_micros`; 0 if absent.
        duration_us: `duration_micros`; 0 if absent.
        attributes: Its attributes; of several with a name, the last.
        groups: `inputs.values` of a metadata node.
    """

    number: int
    name: str
    type: int
    after: tuple[int, ...]
    needs: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: Mapping[str, Value]
    groups: str = ""


@dataclass(frozen=True, slots=True)
class ChakraTrace:
    """Contents of a rank's file; nodes are in an order in which they can run."""

    path: Path
    about: Mapping[str, Value]
    nodes: tuple[ChakraNode, ...]


@dataclass(frozen=True, slots=True)
class GroupFile:
    """Ranks by the numbers of groups."""

    path: Path
    members: Mapping[str, tuple[int, ...]]


def trace_of(document: Document) -> ChakraTrace | GroupFile:
    """Return the checked contents of a file.

    Raises:
        TraceError: names the message or the node, and what is wrong with it.
        UsageError: protobuf is not installed.
    """
    if isinstance(document.content, dict):
        return GroupFile(document.path, _members(document))
    classes = messages(f"cannot import {document.path}")
    summary = f"cannot import {document.path}"
    allowance = Allowance(summary, len(document.content))
    about: Mapping[str, Value] = {}
    nodes: dict[int, ChakraNode] = {}
    for place, message in _read(document, classes):
        num = len(message.attr)
        allowance.take(
            _BYTES_OF_NODE + _BYTES_OF_ATTRIBUTE * num + message.ByteSize(), "nodes", place
        )
        if not isinstance(message, classes.node):
            about = _attributes(message.attr)
            continue
        node = _node(message)
        if node.number in nodes:
            raise _invalid(document, place, f"a second node {node.number}", "ids are unique")
        if not 0 <= node.type < len(ENUMS["NodeType"]):
            why = f"types of nodes are 0 to {len(ENUMS['NodeType']) - 1}"
            raise _invalid(document, place, f"node {node.number} of type {node.type}", why)
        if max(node.start_us, node.duration_us) > _MOST_MICROS:
            found = f"node {node.number} with a time of {max(node.start_us, node.duration_us)} µs"
            raise _invalid(document, place, found, "no trace lasts so long")
        nodes[node.number] = node
    return ChakraTrace(document.path, about, tuple(_in_order(document, nodes)))


def _read(document: Document, classes: Any) -> Iterator[tuple[str, Any]]:
    """Yield the messages of a file with their places."""
    stream = io.BytesIO(document.content)
    number = 0
    while True:
        place = f"message {number}, at byte {stream.tell():,}"
        try:
            kind = classes.node if number else classes.metadata
            message = classes.proto.parse_length_prefixed(kind, stream)
        except Exception as error:  # protobuf raises ValueError, DecodeError and subclasses
            # Not left out as the file of a killed rank would be: such files are written at once.
            found = " ".join(f"no whole message: {error}".split())[:200]
            why = "each message follows its length, and the last one ends the file"
            raise _invalid(document, place, found, why) from error
        if message is None:
            return
        yield place, message
        number += 1


def _node(message: Any) -> ChakraNode:
    after = tuple(message.ctrl_deps)
    in_order = {*after}
    return ChakraNode(
        number=message.id,
        name=message.name,
        type=message.type,
        after=after,
        needs=tuple(dict.fromkeys(each for each in message.data_deps if each not in in_order)),
        start_us=message.start_time_micros,
        duration_us=message.duration_micros,
        attributes=_attributes(message.attr),
        groups=message.inputs.values if message.type == METADATA_NODE else "",
    )


def _attributes(found: Iterable[Any]) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    for each in found:
        kind = each.WhichOneof("value")
        if kind is not None:
            value = getattr(each, kind)
            attributes[each.name] = tuple(value.values) if kind.endswith(_LIST) else value
    return attributes


def _in_order(document: Document, nodes: Mapping[int, ChakraNode]) -> Iterator[ChakraNode]:
    """Yield nodes after those that they depend on, otherwise in the order of the file."""
    place = {number: at for at, number in enumerate(nodes)}
    users: dict[int, list[int]] = {}
    waits_for: dict[int, int] = {}
    for number, node in nodes.items():
        waits_for[number] = len(node.after) + len(node.needs)
        for each in (*node.after, *node.needs):
            if each not in nodes:
                found = f"node {number} depends on node {each}, which the file lacks"
                why = "no simulator could ever run it"
                raise _invalid(document, f"node {number}", found, why)
            users.setdefault(each, []).append(number)
    ready = [(place[number], number) for number, num in waits_for.items() if not num]
    heapify(ready)
    num_left = len(nodes)
    while ready:
        number = heappop(ready)[1]
        num_left -= 1
        yield nodes[number]
        for user in users.get(number, ()):
            waits_for[user] -= 1
            if not waits_for[user]:
                heappush(ready, (place[user], user))
    if num_left:
        circle = _circle(nodes, {number for number, num in waits_for.items() if num})
        found = f"nodes that depend on each other in a circle: {' -> '.join(map(str, circle))}"
        raise _invalid(document, f"node {circle[0]}", found, "none of them could ever run")


_MOST_SHOWN = 8


def _circle(nodes: Mapping[int, ChakraNode], left: set[int]) -> list[int]:
    """Return the begin of a circle among the nodes that could not be put in order."""
    number, seen = min(left), dict[int, None]()
    while number not in seen:
        seen[number] = None
        own = nodes[number]
        number = next(each for each in (*own.after, *own.needs) if each in left)
    found = [*seen][[*seen].index(number) :]
    return [*found[:_MOST_SHOWN], number] if len(found) <= _MOST_SHOWN else found[:_MOST_SHOWN]


def _members(document: Document) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, ranks in document.content.items():
        if not _are_ranks(ranks):
            why = f"a group has different ranks from 0 to {MAX_RANKS - 1}"
            raise _invalid(document, f"group {name}", f"the ranks {str(ranks)[:80]}", why)
        found[name] = tuple(ranks)
    return found


def _are_ranks(values: Any) -> bool:
    """Return whether a value is a list of different ranks."""
    return (
        isinstance(values, list)
        and all(is_int(rank) and 0 <= rank < MAX_RANKS for rank in values)
        and len({*values}) == len(values)
    )


def _invalid(document: Document, place: str, found: str, why: str) -> InvalidTraceError:
    return InvalidTraceError(
        f"cannot import {document.path}", place=place, found=found, why=why, attempt=_WRITE_AGAIN
    )


def invalid(trace: ChakraTrace, node: ChakraNode, found: str, why: str) -> InvalidTraceError:
    """Return the error for a node with an impossible value."""
    return InvalidTraceError(
        f"cannot import {trace.path}",
        place=f"node {node.number}",
        found=found,
        why=why,
        attempt=_WRITE_AGAIN,
    )


def listed_groups(trace: ChakraTrace) -> list[dict[str, Any]]:
    """Return the process groups that nodes of metadata list, as torch does: a text in a list."""
    found: list[dict[str, Any]] = []
    for node in trace.nodes:
        text = node.groups
        if not (text.startswith("['") and text.endswith("']")):
            continue
        try:
            listed = parse_json(text[2:-2])
        except (ValueError, RecursionError):
            continue
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and isinstance(each.get("pg_name"), (str, int)):
                ranks = each.get("ranks")
                if not _are_ranks(ranks):
                    why = f"a group has different ranks from 0 to {MAX_RANKS - 1}"
                    raise invalid(trace, node, f"the ranks {str(ranks)[:80]} of a group", why)
                found.append(each)
    return found
