"""Rows of table `comm` from the launches in a dump.

Shapes are entered in the order in which a backend passes them on, which may differ from the order
in the call:

    scatter on NCCL      the tensor received, then the list of the root
    all_gather on gloo   of several tensors, an output that is none of theirs
    all_to_all           of a list, in torch 2.4 and 2.5, its first tensors

The list of a gather or scatter, which only its root has, shows that the rank is the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from commtrace.device_kernels import UNKNOWN
from commtrace.event import CommEvent
from commtrace.importers.flight_recorder.entries import Dump, Entry
from commtrace.importers.flight_recorder.fields import Frame, Shape
from commtrace.importers.flight_recorder.launches import CallLaunch
from commtrace.importers.rank_record import RankRecord, members_of
from commtrace.torch_names import (
    COALESCED,
    NOT_KNOWN,
    dtype_of,
    is_installed,
    is_library,
    payload_of,
    shapes_text,
    wire_of,
)

_FIRST_WITH_LISTS = (2, 7)
"""First version in which an all-to-all surely has all tensors of its lists."""


@dataclass(frozen=True, slots=True)
class _Message:
    """Tensors of a call, in the order of the call.

    Attributes:
        elements: Elements sent and received, which determine the payload; -1 if unknown.
        is_root: The rank is the root.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    elements: tuple[int, int]
    is_root: bool = False


def rows_of(record: RankRecord, launch: CallLaunch, dump: Dump) -> Iterator[Any]:
    """Yield the calls of a launch: each transfer separately, its collectives as a single call."""
    for part in launch.parts:
        if part.is_transfer:
            yield _transfer(record, part, launch)
    if launch.is_collective:
        yield _collective(record, launch, dump)


def _transfer(record: RankRecord, entry: Entry, launch: CallLaunch) -> Any:
    ranks = members_of(record.groups[entry.group])
    peer = entry.ends[1]
    message = _as_entered(entry)
    payload = payload_of(entry.kind, *message.elements, entry.itemsize, len(ranks))
    return _row(record, entry, launch)._replace(
        kind=entry.kind,
        peer=ranks[peer] if 0 <= peer < len(ranks) else NOT_KNOWN if ranks else peer,
        dtype=_dtype(entry),
        payload_bytes=payload,
        wire_bytes=wire_of(entry.kind, payload, ranks, record.rank, NOT_KNOWN),
        input_shapes=shapes_text(message.inputs),
        output_shapes=shapes_text(message.outputs),
    )


def _collective(record: RankRecord, launch: CallLaunch, dump: Dump) -> Any:
    kind, first = _kind(launch), launch.first
    ranks = members_of(record.groups[first.group])
    messages = [_message(part, dump, len(ranks)) for part in launch.parts]
    payload = _payload(launch, messages, kind, len(ranks))
    root = record.rank if any(each.is_root for each in messages) else NOT_KNOWN
    splits = [_splits(each, first, len(ranks)) for each in messages[:1]] if kind == _TO_ALL else []
    sent, received = splits[0] if splits else ((), ())
    return _row(record, first, launch)._replace(
        kind=kind,
        seq=launch.number,
        root=root,
        dtype="" if kind == "barrier" else _dtype(first),
        payload_bytes=payload,
        wire_bytes=wire_of(kind, payload, ranks, record.rank, root, sent),
        input_shapes=shapes_text([shape for each in messages for shape in each.inputs]),
        output_shapes=shapes_text([shape for each in messages for shape in each.outputs]),
        input_splits=",".join(map(str, sent)),
        output_splits=",".join(map(str, received)),
    )


_TO_ALL = "all_to_all"


def _kind(launch: CallLaunch) -> str:
    """Return the kind that a closing entry states, or that all calls of the launch have."""
    if not launch.is_counted:
        return UNKNOWN
    if launch.last.kind not in COALESCED:
        return launch.last.kind
    kinds = {part.kind for part in launch.parts}
    return kinds.pop() if len(kinds) == 1 else UNKNOWN


def _payload(launch: CallLaunch, messages: Sequence[_Message], kind: str, size: int) -> int:
    total = 0 if messages else NOT_KNOWN
    for part, message in zip(launch.parts, messages, strict=True):
        own_kind = part.kind if launch.closing else kind
        payload = payload_of(own_kind, *message.elements, part.itemsize, size)
        total = total + payload if min(total, payload) >= 0 else NOT_KNOWN
    return total


def _message(entry: Entry, dump: Dump, size: int) -> _Message:
    if entry.kind in ("gather", "scatter"):
        return _rooted(entry, size)
    if "sparse" in entry.operation:  # its shape is that of a dense tensor
        return _Message(entry.inputs, entry.outputs, (NOT_KNOWN, NOT_KNOWN))
    if entry.kind == "all_gather" and entry.backend == "gloo" and len(entry.inputs) > 1:
        return _Message(entry.inputs, (), (_elements(entry.inputs), NOT_KNOWN))
    if entry.kind == _TO_ALL and _may_be_cut(entry, dump):
        is_list = any(frame.name == _TO_ALL for frame in entry.frames)
        elements = NOT_KNOWN if is_list else _elements(entry.inputs)
        return _Message((), (), (elements, NOT_KNOWN))
    return _as_entered(entry)


def _as_entered(entry: Entry) -> _Message:
    elements = _elements(entry.inputs), _elements(entry.outputs)
    return _Message(entry.inputs, entry.outputs, elements)


def _may_be_cut(entry: Entry, dump: Dump) -> bool:
    """Return whether a tensor may stand for a list, and the stack does not show the opposite."""
    if dump.version >= _FIRST_WITH_LISTS or entry.backend != "nccl":
        return False
    is_single = any(frame.name in _SINGLE for frame in entry.frames)
    return len(entry.inputs) == len(entry.outputs) == 1 and not is_single


_SINGLE = frozenset({"all_to_all_single", "all_to_all_single_autograd"})


def _rooted(entry: Entry, size: int) -> _Message:
    """Return the tensors of a gather or scatter: the rank's own, and the list of the root.

    The list may be entered as a single tensor, or as its first tensor.
    """
    own, lists = entry.inputs, entry.outputs
    is_gather = entry.kind == "gather"
    if not is_gather:
        own, lists = sorted((own, lists), key=lambda each: (not each, _elements(each), len(each)))
    if size > 0 and own and lists == ((size, *own[0]),):
        lists = own * size
    is_list = len(lists) in (1, size) and set(lists) == set(own)
    is_root = is_list and size > 1 and not entry.operation.endswith(("_single", "_into_tensor"))
    elements = _elements(own)
    if is_gather:
        return _Message(own, lists, (elements, NOT_KNOWN), is_root)
    return _Message(lists, own, (NOT_KNOWN, elements), is_root)


def _splits(message: _Message, entry: Entry, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of an all-to-all to and from each member; empty if equal or unknown.

    Dumps of version 2.11 and later have the elements.
    """
    if entry.itemsize >= 0 and all(len(each) == size for each in entry.splits):
        sent, received = (tuple(num * entry.itemsize for num in each) for each in entry.splits)
        return sent, received
    both = [_bytes_of_each(shapes, entry, size) for shapes in (message.inputs, message.outputs)]
    is_uneven = all(both) and any(len(set(each)) > 1 for each in both)
    return (both[0], both[1]) if is_uneven else ((), ())


def _bytes_of_each(shapes: Sequence[Shape], entry: Entry, size: int) -> tuple[int, ...]:
    if len(shapes) != size or entry.itemsize < 0:
        return ()
    return tuple(prod(shape) * entry.itemsize for shape in shapes)


def _dtype(entry: Entry) -> str:
    return dtype_of(entry.dtype)[0] if entry.dtype else ""


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(map(prod, shapes)) if shapes else NOT_KNOWN


def _row(record: RankRecord, entry: Entry, launch: CallLaunch) -> Any:
    """Return the columns common to transfers and collectives; a batch ends with its last entry."""
    frames = entry.frames or launch.last.frames
    users = _of_user(frames)
    source = users[0] if users else None
    name = entry.operation.split(" ")[0]
    return CommEvent(
        rank=record.rank,
        id=entry.number,
        native_op=f"{entry.backend}:{name}" if entry.backend else name,
        group=entry.group,
        issue_ns=entry.issue_ns,
        complete_ns=launch.last.complete_ns,
        device_ns=launch.last.device_ns,
        thread=entry.thread,
        source_file=source.filename if source else "",
        source_line=source.line if source else NOT_KNOWN,
        source_function=source.name if source else "",
        stack=_stack(frames),
        callers=_stack(users[1:]),
    )


@lru_cache(maxsize=1024)
def _of_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of the user's code; without any, the frames of installed packages."""
    others = tuple([frame for frame in frames if not is_library(frame.filename)])
    return tuple([frame for frame in others if not is_installed(frame.filename)]) or others


@lru_cache(maxsize=1024)
def _stack(frames: tuple[Frame, ...]) -> str:
    return "\n".join(f"{frame.filename}:{frame.line} {frame.name}" for frame in reversed(frames))
