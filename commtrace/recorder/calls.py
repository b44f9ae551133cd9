"""One communication call: its arguments, its outcome, and its row in table `comm`.

`issue` creates a `Call` when the operator is called and reads only values that would be gone later.
Text is formatted when the call is written (`row`), off the program's critical path. A `Request`
holds the arguments' values, and calls known to be alike share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from json import dumps
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from commtrace.collective_table import wire_bytes
from commtrace.recorder.groups import Group
from commtrace.recorder.library_frames import Attribution
from commtrace.recorder.locator import Location
from commtrace.recorder.modules import Place
from commtrace.recorder.signatures import RECEIVED, RESULT, SENT, Signature
from commtrace.recorder.stack_frames import line_of, text_of_stack
from commtrace.recorder.thread_state import Stack, ThreadState

_UNKNOWN = -1
_RESUMED = "torch_dynamo_resume_in_"
_Tensor = torch.Tensor

Shapes = tuple[torch.Size, ...]


class Request:
    """Argument values of a call; shared by all calls that one announcement object announces.

    `is_computed` is false for fake and meta tensors, which hold no data. `root` and `peer` are
    ranks within the group, -1 if none.
    """

    __slots__ = (
        "announcement", "device", "dtype", "group", "is_async", "is_computed", "is_shared",
        "kept_bytes", "native_op", "payload", "peer", "received", "reduce_op", "root", "sent",
        "signature",
    )  # fmt: skip

    def __init__(
        self, native_op: str, signature: Signature, group: Group, announcement: Any = None
    ) -> None:
        self.native_op = native_op
        self.signature = signature
        self.group = group
        self.announcement = announcement
        self.sent: Shapes = ()
        self.received: Shapes = ()
        self.payload = 0
        self.kept_bytes = self.root = self.peer = _UNKNOWN
        self.dtype: Any = None
        self.reduce_op = ""
        self.device = "cpu"
        self.is_computed = self.is_async = True
        self.is_shared = False

    def identity(self) -> Any:
        """Return a key, equal if all columns are equal; costly objects enter by identity."""
        if self.is_shared:
            return id(self)
        return (
            self.native_op, self.group, self.reduce_op, self.root, self.peer, self.dtype, self.sent,
            self.received, self.payload, self.kept_bytes, self.is_async, id(self.announcement),
        )  # fmt: skip

    def wire_bytes(self) -> int:
        """Return the bytes that this rank puts on the wire."""
        if self.kept_bytes >= 0:
            return self.payload - self.kept_bytes
        group = self.group
        distance = group.distance(max(self.root, 0))
        return wire_bytes(self.signature.kind, self.payload, len(group.ranks), distance=distance)


class Call:
    """A call in progress or completed. Times are the recorder's clock in ns; -1 is unknown.

    A call outlives its tensors. It has slots, to stay below 512 bytes, and holds no object created
    in C++. Such an object would come from the allocator that serves the tensors and could occupy
    the gap that one of them leaves, so that the next tensor of the same size would not fit there.

    Attributes:
        functional_op: the functional collective that issued the call, if any.
        is_watched: the completion of the call will still be reported.
        is_owed: the blocked time of the call will still be reported.
    """

    __slots__ = (
        "end", "functional_op", "id", "is_owed", "is_settled", "is_watched", "issue", "location",
        "num_waits", "op", "op_id", "region", "request", "returned", "sent_id", "seq", "stack",
        "thread", "waited", "work",
    )  # fmt: skip

    id: int
    seq: int

    def __init__(self, request: Request, location: Location, state: ThreadState) -> None:
        self.request = request
        self.location = location
        self.thread = state.native_id
        self.region = state.regions[-1] if state.regions else ""
        self.functional_op = state.functional_op
        self.op = state.dtensor_op or state.op
        self.op_id = state.op_id
        self.stack: Stack = ()
        self.waited = self.num_waits = 0
        self.issue = self.returned = self.end = self.sent_id = _UNKNOWN
        self.work: Any = None
        self.is_settled = self.is_watched = self.is_owed = False

    def is_over(self) -> bool:
        """Return whether everything that can be known of the call is known."""
        if self.is_settled:
            return True
        if self.is_watched or self.is_owed:
            return False
        return self.work is not None and self.work() is None

    def blocked(self) -> int:
        """Return the time that the thread was observed to be blocked, in ns; -1 if unknown."""
        if self.returned < 0:
            return _UNKNOWN
        if not self.request.is_async:
            return self.returned - self.issue + self.waited
        return self.waited if self.num_waits else _UNKNOWN

    def site(self) -> tuple[Any, ...]:
        """Return a key of the row's columns other than the numbers."""
        phase, module_call, code, instruction, told = self.location
        return (
            self.request.identity(), self.region, self.thread, id(self.op), phase,
            module_call[0] if module_call else None, id(code), instruction, self.stack,
            told.key() if told else None,
        )  # fmt: skip

    def held(self) -> Any:
        """Return the object that must outlive the site; code and operators live on anyway."""
        return self.request

    def numbers(self, epoch: int, step: int, numbering: Numbering) -> tuple[int, ...]:
        """Return the columns that `spool.NUMBERS` names, in that order."""
        module_call = self.location[1]
        number, seq, op_id = numbering.of(self)
        issue, returned, end = self.issue, self.returned, self.end
        return (
            number,
            seq,
            issue + epoch,
            returned - issue if returned >= 0 else _UNKNOWN,
            self.blocked(),
            end + epoch if end >= 0 else _UNKNOWN,
            step,
            module_call[1] if module_call else _UNKNOWN,
            op_id,
            self.sent_id,
        )

    def row(self, epoch: int, step: int, numbering: Numbering) -> tuple[Any, ...]:
        """Return the call as a row of table `comm`, in the order of its columns."""
        request = self.request
        group = request.group
        number, seq, op_id = numbering.of(self)
        phase, module_call, code, instruction, told = self.location
        place = module_call[0] if module_call else None
        why = request.announcement
        if why is None and told is not None and told.reason is not None:
            why = told.reason()
        return (
            group.rank,
            number,
            request.signature.kind,
            request.native_op,
            numbering.name(group),
            seq,
            request.reduce_op,
            group.global_rank(request.root),
            group.global_rank(request.peer),
            _dtype_name(request.dtype),
            _shapes(request.sent),
            _shapes(request.received),
            request.payload,
            request.wire_bytes(),
            request.is_async,
            self.issue + epoch,
            self.returned - self.issue if self.returned >= 0 else _UNKNOWN,
            self.blocked(),
            self.end + epoch if self.end >= 0 else _UNKNOWN,
            step,
            phase,
            self.region,
            place.plain if place else "",
            place.class_name if place else "",
            module_call[1] if module_call else _UNKNOWN,
            self.thread,
            why.operator if why else str(self.op or ""),
            op_id,
            code.co_filename if code else "",
            line_of(code, instruction) if code else _UNKNOWN,
            _name_of_function(code) if code else "",
            why.sentence if why else told.note() if told else "",
            why.argument if why else "",
            why.source if why else "",
            why.target if why else "",
            dumps(why.candidates) if why and why.candidates else "",
            why.payload_bytes if why else _UNKNOWN,
            told.carries if told else "",
            ",".join(_names(told, place)) if told else "",
            text_of_stack(self.stack) if self.stack else "",
            self.sent_id,
        )


class Numbering:
    """Numbering and naming of one recording, relative to those of the process.

    Numbers start at 0 where the recording began. A group keeps its name, unless an earlier group of
    this recording has the same name: one with other ranks, or one that this rank has destroyed
    since. Threads that play the ranks of one group have one object each for it.
    """

    def __init__(
        self, calls: Mapping[int, int], groups: Mapping[Group, int], ops: int | None
    ) -> None:
        self._first_calls = calls
        self._first_seqs = groups
        self.first_op = ops
        self._names: dict[Group, str] = {}
        self._holders: dict[str, tuple[tuple[int, ...], dict[int, Group]]] = {}

    def of(self, call: Call) -> tuple[int, int, int]:
        """Return the call's number on its rank, its number in its group, and its operator's number.

        The last is -1 if this recording does not have the operator.
        """
        group = call.request.group
        return (
            call.id - self._first_calls.get(group.rank, 0),
            call.seq - self._first_seqs.get(group, 0),
            _UNKNOWN if self.first_op is None else max(call.op_id - self.first_op, _UNKNOWN),
        )

    def name(self, group: Group) -> str:
        """Return the name of a group, unique within this recording."""
        name = self._names.get(group)
        if name is None:
            name, number = group.row.name, 1
            while not self._takes(name, group):
                number += 1
                name = f"{group.row.name}#{number}"
            self._names[group] = name
        return name

    def _takes(self, name: str, group: Group) -> bool:
        """Claim a name for a group; return whether it was free."""
        ranks, holders = self._holders.setdefault(name, (group.ranks, {}))
        return ranks == group.ranks and holders.setdefault(group.rank, group) is group


def tensors_of(argument: Any) -> Sequence[torch.Tensor]:
    """Return the tensors of a tensor, a list of tensors, or a list of lists."""
    if isinstance(argument, torch.Tensor):
        return (argument,)
    if argument and isinstance(argument[0], (list, tuple)):
        return [tensor for each in argument for tensor in each]
    return argument


def read_arguments(request: Request, args: Sequence[Any], reduce_op: str = "") -> None:
    """Fill in the request from the operator's arguments.

    A functional collective passes `reduce_op` by name. c10d wraps it in a ScriptObject; unboxing
    dominates the cost of this function.
    """
    signature = request.signature
    if reduce_op:
        request.reduce_op = reduce_op
    elif signature.reduce_op is not None:
        given = len(args) > signature.reduce_op
        request.reduce_op = _reduce_op_name(args[signature.reduce_op]) if given else "sum"
    if signature.root is not None:
        request.root = args[signature.root]
    if signature.peer is not None:
        request.peer = args[signature.peer]
    if signature.is_async is not None:
        # the dispatcher drops an argument that equals its default, True
        request.is_async = len(args) <= signature.is_async or bool(args[signature.is_async])
    elif signature.is_blocking:
        request.is_async = False
    if signature.sent is not None:
        request.sent = _read_tensors(request, args[signature.sent], signature.payload is SENT)
        if signature.kind == "all_to_all":
            request.kept_bytes = _kept_bytes(request, args)
    if signature.received == signature.sent:
        request.received = request.sent
    elif signature.received is not None and signature.received != RESULT:
        request.received = _read_tensors(
            request, args[signature.received], signature.payload is RECEIVED
        )
    if signature.payload_per_rank:
        request.payload *= len(request.group.ranks)


def read_result(request: Request, result: Any) -> None:
    """Fill in the request from the operator's result, which is the call's output buffer."""
    signature = request.signature
    request.received = _read_tensors(request, result, signature.payload is RECEIVED)
    if signature.payload_per_rank:
        request.payload *= len(request.group.ranks)


def _read_tensors(request: Request, argument: Any, is_payload: bool) -> Shapes:
    """Return the shapes of an argument's tensors; sum their bytes and note dtype and device."""
    tensors = (argument,) if type(argument) is _Tensor else tensors_of(argument)
    if not tensors:
        return ()
    first = tensors[0]
    if request.dtype is None:
        request.dtype = first.dtype
        if not first.is_cpu:
            request.device = first.device.type
            request.is_computed = not first.is_meta
        if type(first) is not _Tensor and isinstance(first, FakeTensor):
            request.is_computed = False
    if len(tensors) == 1:
        if is_payload:
            request.payload = first.numel() * first.itemsize
        return (first.shape,)
    if is_payload:
        request.payload = sum([tensor.numel() * tensor.itemsize for tensor in tensors])
    return tuple([tensor.shape for tensor in tensors])


def _kept_bytes(request: Request, args: Sequence[Any]) -> int:
    """Return the bytes a rank sends to itself in an all-to-all; -1 if all ranks get the same."""
    signature, own = request.signature, request.group.group_rank
    if signature.split is not None:
        split = args[signature.split]
        return request.payload * split[own] // max(sum(split), 1) if split else _UNKNOWN
    sent = args[signature.sent or 0]
    if isinstance(sent, torch.Tensor):  # equal splits, or splits that only the device knows
        return _UNKNOWN
    tensor = tensors_of(sent)[own]
    return tensor.numel() * tensor.itemsize


def _names(told: Attribution, place: Place | None) -> Iterable[str]:
    names = told.names()
    if told.are_relative and place is not None and place.plain:
        return [f"{place.plain}.{name}" for name in names]
    return names


def _name_of_function(code: CodeType) -> str:
    """Return a function's name, also of one that torch.compile resumes after a graph break."""
    rest = code.co_name.removeprefix(_RESUMED)
    return code.co_name if rest == code.co_name else rest.rpartition("_at_")[0]


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


_shape_texts: dict[Any, str] = {}


def _shapes(shapes: tuple[Any, ...]) -> str:
    text = _shape_texts.get(shapes)
    if text is None:
        if len(_shape_texts) > 10_000:
            _shape_texts.clear()
        text = ";".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        _shape_texts[shapes] = text
    return text


_REDUCE_OPS: dict[int, str] = (
    {op.value: name.lower() for name, op in dist.ReduceOp.RedOpType.__members__.items()}
    if dist.is_available()
    else {}
)


def _reduce_op_name(reduce_op: Any) -> str:
    """Return the name of a reduction, given by name or wrapped by c10d in a ScriptObject."""
    if isinstance(reduce_op, str):
        return reduce_op
    try:
        return _REDUCE_OPS.get(reduce_op._get_method("op")(), "")
    except (AttributeError, RuntimeError):  # not readable before torch 2.11
        return ""
