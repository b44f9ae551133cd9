"""Arguments of a profiled call, from its operator or from its description.

A description (`record_param_comms`) has named fields. An operator's arguments are positional:
shapes are in `Input Dims`, numbers and flags in `Concrete Inputs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from commtrace.importers.kineto.calls import HostCall
from commtrace.importers.kineto.spans import COLLECTIVE_NAME, CommunicationWork
from commtrace.schema import MAX_RANKS
from commtrace.torch_names import NOT_KNOWN, ROOTED, TRANSFERS, dtype_of, kind_of, shapes_text
from commtrace.tracefile.reading import DamageError, is_int

MESSAGE_BYTES = "Message size [bytes]"
"""Field of an annotation: bytes that a rank passes to NCCL, or a single rank's part of them."""

BYTES = "bytes"
"""Element type of a message if only its size in bytes is known."""

_RECEIVES_FIRST = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Kinds whose operator takes the output as its first argument and the input as its second."""

_SENDS_AS_MUCH = frozenset({"all_reduce", "broadcast", "recv", "reduce"})
"""Kinds whose output has the shape of their input."""

_ROOT_AT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
_PEER_AT = {"send": 2, "recv": 2}


def number_of(args: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Return the key of a described collective, unique on its rank; None without a number."""
    seq = seq_of(args)
    if seq < 0:
        return None
    return str(args.get("Process Group Name")), kind_of(str(args.get(COLLECTIVE_NAME))), seq


def seq_of(args: Mapping[str, Any]) -> int:
    """Return the collective's number, from 0; NCCL counts from 1."""
    seq = args.get("Seq")
    return int(seq) - 1 if isinstance(seq, (int, float)) and seq >= 1 else NOT_KNOWN


def ranks_in(text: str, about: Mapping[str, Any], most: int = MAX_RANKS) -> list[int]:
    """Return the ranks of a group; a trace may list only the first few and the last.

    Raises:
        DamageError: the group claims more than `most` ranks.
    """
    listed = [int(number) for number in _NUMBER.findall(text)]
    if listed and "..." not in text:
        return listed
    start, stride, size = (about.get(name) for name in _REGULAR)
    if (
        not (is_int(size) and is_int(start) and is_int(stride))
        or min(size, stride) < 1
        or start < 0
    ):
        return []
    if size > most or start + stride * (size - 1) >= MAX_RANKS:
        raise DamageError(f"a group of {size:,} ranks from {start} in steps of {stride}", "groups")
    ranks = [start + place * stride for place in range(size)]
    return ranks if set(listed) <= set(ranks) else []


_REGULAR = ("Global rank start", "Global rank stride", "Group size")
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


def _member(ranks: tuple[int, ...], place: Any) -> int:
    """Return the global rank of a position in a group."""
    known = isinstance(place, (int, float)) and 0 <= place < len(ranks)
    return ranks[int(place)] if known else NOT_KNOWN


def root_of(call: HostCall, kind: str, ranks: tuple[int, ...]) -> int:
    """Return the global rank of the root; -1 for kinds without a root."""
    if kind not in ROOTED:
        return NOT_KNOWN
    args = call.described
    return _member(ranks, args.get("Rank") if args else _input(call, _ROOT_AT.get(kind)))


def reduction_of(call: HostCall, kind: str) -> str:
    """Return the reduction, as stated in the name of the device kernel."""
    return call.kernel.reduce_op if call.kernel and "reduce" in kind else ""


def peer_of(call: HostCall, kind: str, ranks: tuple[int, ...]) -> int:
    """Return the global rank of the other side of a transfer."""
    if kind not in TRANSFERS:
        return NOT_KNOWN
    stated = call.described.get("Dst Rank" if kind == "send" else "Src Rank")
    if isinstance(stated, (int, float)):
        return int(stated)
    return _member(ranks, _input(call, _PEER_AT[kind]))


def _input(call: HostCall, place: int | None) -> int | None:
    """Return an integer argument of the operator, or None if the trace lacks it."""
    values = call.args.get("Concrete Inputs") or ()
    if place is None or place >= len(values) or not str(values[place]).lstrip("-").isdigit():
        return None
    return int(values[place])


def is_async(call: HostCall) -> bool:
    """Return whether the program could go on before the call was complete."""
    values = call.args.get("Concrete Inputs") or ()
    if len(values) >= 2 and values[-2] in ("True", "False"):
        return values[-2] == "True"
    return bool(call.described.get("Is asynchronized op", not call.described))


def channels_of(work: CommunicationWork) -> int:
    """Return the channels of an NCCL or RCCL kernel, which runs a thread block for each."""
    grid = work.args.get("grid")
    if not (work.kernel.has_block_per_channel and isinstance(grid, list) and grid):
        return NOT_KNOWN
    first = grid[0]
    return first if is_int(first) and 0 < first < _MOST_CHANNELS else NOT_KNOWN


_MOST_CHANNELS = 1 << 16


def splits_of(
    call: HostCall, kind: str, numels: tuple[int, int], itemsize: int, size: int
) -> tuple[list[int], list[int]]:
    """Return the bytes of an all-to-all to and from each member; nothing if equal or unknown.

    Args:
        call: The call, whose description has the splits in rows or elements.
        kind: Kind of the call.
        numels: Elements sent and received.
        itemsize: Bytes of an element.
        size: Number of ranks in the group.
    """
    if kind != "all_to_all" or itemsize <= 0:
        return [], []
    sent, received = (
        _split(call.described.get(name), numel * itemsize, size)
        for name, numel in zip(_SPLITS, numels, strict=True)
    )
    return sent, received


_SPLITS = ("In split size", "Out split size")


def _split(parts: Any, num_bytes: int, size: int) -> list[int]:
    """Divide bytes as a list of numbers says; nothing if it does not fit or was abbreviated."""
    text = str(parts)
    if "..." in text:
        return []
    numbers = [int(number) for number in _NUMBER.findall(text)]
    total = sum(numbers)
    if len(numbers) != size or num_bytes < 0 or (num_bytes % total if total else num_bytes):
        return []
    return [num_bytes // total * number if total else 0 for number in numbers]


def message_of(call: HostCall, kind: str) -> tuple[int, int, str, tuple[str, str]]:
    """Return elements sent and received, element type, and both shapes as text.

    They stand in the description, or in the operator's arguments. For a list of tensors these lack
    the shapes, which the annotation then has of the tensors sent.
    """
    args = call.described
    if "In msg nelems" in args:
        sent, received = int(args["In msg nelems"]), int(args.get("Out msg nelems", NOT_KNOWN))
        flat = ("", "") if kind in ("gather", "scatter") else (f"[{sent}]", f"[{received}]")
        return sent, received, str(args.get("dtype") or ""), flat
    dims, types = call.args.get("Input Dims") or (), call.args.get("Input type") or ()
    of_worker = call.worker_args.get("Input type") or ()
    noted = (call.noted or {}).get("Input type") or ()
    dtype = next((t for t in (*of_worker, *types[:2], *noted) if dtype_of(str(t))[1] > 0), "")
    both = [_shapes(dims[place]) if place < len(dims) else [] for place in (0, 1)]
    stated = (call.noted or {}).get(MESSAGE_BYTES)
    if stated is not None:
        received = kind in ("reduce_scatter", "scatter", "recv")
        sent = stated if not received and kind != "all_to_all" else NOT_KNOWN
        return sent, stated if received else NOT_KNOWN, BYTES, ("", "")
    if not any(both):
        into = _shapes((call.noted or {}).get("Input Dims"))
        out = into if kind in _SENDS_AS_MUCH else []
    elif kind in _RECEIVES_FIRST:
        out, into = both
    else:
        out = into = both[0]
    if kind == "recv":
        into = []
    elif kind == "send":
        out = []
    return _numel(into), _numel(out), str(dtype), (shapes_text(into), shapes_text(out))


def _shapes(dims: Any) -> list[list[int]]:
    """Return the shapes of an argument that is a tensor or a list of tensors."""
    if not isinstance(dims, list) or not dims:
        return []
    if all(isinstance(size, int) for size in dims):
        return [dims]
    return [each for each in dims if isinstance(each, list)]


def _numel(shapes: list[list[int]]) -> int:
    return sum(prod(shape) for shape in shapes) if shapes else NOT_KNOWN
