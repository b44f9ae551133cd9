"""Request of a communication call: the values of its arguments.

The recorder reads a request when the operator is called, since its tensors may be gone later. Calls
known to be alike share it: calls announced by the same `Reason`, or with the same `key_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from commtrace.collective_table import wire_bytes
from commtrace.recorder.events.groups import Group
from commtrace.recorder.events.signature import RECEIVED, RESULT, SENT, Signature
from commtrace.torch_internals.tensors import FakeTensor

_UNKNOWN = -1
_Tensor = torch.Tensor

Shapes = tuple[torch.Size, ...]

_UNSHARED = frozenset({"all_to_all", "send", "recv"})
"""Kinds of calls with splits or peers, and kinds whose function decides if they are async."""
_SIZES_AND_NAMES = frozenset({int, str})


class Request:
    """Argument values of a call, shared by calls that are alike.

    `is_computed` is false for fake and meta tensors, which hold no data. `root` and `peer` are
    ranks within the group, and `tag` is a transfer's tag, -1 if none. `input_splits` and
    `output_splits` are the bytes of an all-to-all to and from each rank of the group; empty if
    equal. `expert_rows` are its rows to each expert of the group; empty if the program does not
    state them.
    """

    __slots__ = (
        "device", "device_name", "dtype", "expert_rows", "group", "input_splits", "is_async",
        "is_computed", "is_shared", "is_timed", "native_op", "output_splits", "payload", "peer",
        "reason", "received", "reduce_op", "root", "sent", "signature", "tag",
    )  # fmt: skip

    def __init__(
        self, native_op: str, signature: Signature, group: Group, reason: Any = None
    ) -> None:
        self.native_op = native_op
        self.signature = signature
        self.group = group
        self.reason = reason
        self.sent: Shapes = ()
        self.received: Shapes = ()
        self.payload = 0
        self.root = self.peer = self.tag = _UNKNOWN
        self.input_splits: tuple[int, ...] = ()
        self.output_splits: tuple[int, ...] = ()
        self.expert_rows: tuple[int, ...] = ()
        self.dtype: Any = None
        self.reduce_op = ""
        self.device = self.device_name = "cpu"
        self.is_computed = self.is_timed = self.is_async = True
        self.is_shared = False

    def read_arguments(self, args: Sequence[Any], reduce_op: str = "") -> None:
        """Read the operator's arguments.

        A functional collective passes `reduce_op` by name. c10d wraps it in a ScriptObject;
        unboxing dominates the cost of this function.
        """
        signature = self.signature
        if reduce_op:
            self.reduce_op = reduce_op
        elif signature.reduce_op is not None:
            self.reduce_op = _reduction(signature.reduce_op, args)
        if signature.root is not None:
            self.root = args[signature.root]
        if signature.peer is not None:
            self.peer = args[signature.peer]
        if signature.tag is not None:
            self.tag = args[signature.tag]
        if signature.is_async is not None:
            # the dispatcher drops an argument that equals its default, True
            self.is_async = len(args) <= signature.is_async or bool(args[signature.is_async])
        elif signature.is_blocking:
            self.is_async = False
        if signature.sent is not None:
            self.sent = self._read_tensors(args[signature.sent], signature.payload is SENT)
            if signature.kind == "all_to_all":
                self._read_splits(args)
        if signature.received == signature.sent:
            self.received = self.sent
        elif signature.received is not None and signature.received != RESULT:
            self.received = self._read_tensors(
                args[signature.received], signature.payload is RECEIVED
            )
        if signature.payload_per_rank:
            self.payload *= len(self.group.ranks)

    def read_result(self, result: Any) -> None:
        """Read the operator's result, which is the call's output buffer."""
        signature = self.signature
        self.received = self._read_tensors(result, signature.payload is RECEIVED)
        if signature.payload_per_rank:
            self.payload *= len(self.group.ranks)

    def set_async(self, is_async: bool) -> None:
        """Note whether the operator returns before the call is complete."""
        self.is_async = is_async

    def state_experts(self, rows: tuple[int, ...]) -> None:
        """Note the rows that the call sends to each expert of its group."""
        self.expert_rows = rows

    def share(self) -> None:
        """Note that several calls have this request."""
        self.is_shared = True

    def identity(self) -> Any:
        """Return a key, equal if all columns are equal; costly objects enter by identity."""
        if self.is_shared:  # what it receives is unknown before the first of them has returned
            return id(self), len(self.received)
        return (
            self.native_op, self.group, self.reduce_op, self.root, self.peer, self.dtype, self.sent,
            self.received, self.payload, self.input_splits, self.output_splits, self.expert_rows,
            self.device_name, self.is_async, id(self.reason),
        )  # fmt: skip

    def wire_bytes(self) -> int:
        """Return the bytes that this rank puts on the wire."""
        group = self.group
        if len(self.input_splits) == len(group.ranks):
            return self.payload - self.input_splits[group.group_rank]
        distance = group.distance(max(self.root, 0))
        return wire_bytes(self.signature.kind, self.payload, len(group.ranks), distance=distance)

    def _read_tensors(self, argument: Any, is_payload: bool) -> Shapes:
        """Return the shapes of an argument's tensors; sum their bytes, note dtype and device."""
        if type(argument) is _Tensor:
            tensors = (argument,)
        elif type(argument) is list and argument and type(argument[0]) is _Tensor:
            tensors = argument  # the usual case of `tensors_of`, without its cost
        else:
            tensors = tensors_of(argument)
        if not tensors:
            return ()
        first = tensors[0]
        if self.dtype is None:
            self.dtype = first.dtype
            if not first.is_cpu:
                self.device, self.device_name = first.device.type, str(first.device)
                self.is_computed = not first.is_meta
            if type(first) is not _Tensor and isinstance(first, FakeTensor):
                self.is_computed = False
            self.is_timed = self.is_computed and self.device == "cpu"
        if len(tensors) == 1:
            if is_payload:
                self.payload = first.numel() * first.itemsize
            return (first.shape,)
        if is_payload:
            self.payload = sum([tensor.numel() * tensor.itemsize for tensor in tensors])
        return tuple([tensor.shape for tensor in tensors])

    def _read_splits(self, args: Sequence[Any]) -> None:
        """Read the bytes of an all-to-all to and from each rank; none if all get the same."""
        signature = self.signature
        sent = args[signature.sent or 0]
        if signature.split is not None:
            row_bytes = prod(sent.shape[1:]) * sent.itemsize
            self.input_splits = tuple([each * row_bytes for each in args[signature.split]])
            self.output_splits = tuple([each * row_bytes for each in args[signature.split - 1]])
        elif not isinstance(sent, torch.Tensor):  # else equal, or known to the device only
            self.input_splits = _sizes(sent)
            received = args[signature.received or 0]
            self.output_splits = _sizes(received)


def key_of(
    native_op: str, signature: Signature, args: Sequence[Any], reduce_op: str
) -> tuple[Any, ...] | None:
    """Return a key of a group's calls, equal if all values of their requests are.

    None unless it sends a single plain tensor, and its shapes determine all values.
    """
    sent, received = signature.sent, signature.received
    if sent is None or signature.kind in _UNSHARED:
        return None
    tensor = args[sent]
    if type(tensor) is list and len(tensor) == 1:
        (tensor,) = tensor
    if type(tensor) is not _Tensor:
        return None
    into: Any = None
    if received == RESULT:
        into = (*args[1 : signature.group], *args[signature.group + 1 :])
        if sent or not _SIZES_AND_NAMES.issuperset(map(type, into)):
            return None
    elif received is not None and received != sent:
        result = args[received]
        if type(result) is list and len(result) == 1:
            (result,) = result
        if type(result) is not _Tensor:
            return None
        into = result.shape, result.dtype
    if not reduce_op and signature.reduce_op is not None:
        reduce_op = _reduction(signature.reduce_op, args)
    is_async = signature.is_async
    return (
        native_op, tensor.shape, tensor.dtype, tensor.device, into, reduce_op,
        None if signature.root is None else args[signature.root],
        None if is_async is None or len(args) <= is_async else args[is_async],
    )  # fmt: skip


def _sizes(tensors: Any) -> tuple[int, ...]:
    """Return the bytes of each tensor."""
    return tuple([tensor.numel() * tensor.itemsize for tensor in tensors_of(tensors)])


def tensors_of(argument: Any) -> Sequence[torch.Tensor]:
    """Return the tensors of a tensor, a list of tensors, or a list of lists."""
    if isinstance(argument, torch.Tensor):
        return (argument,)
    if argument and isinstance(argument[0], (list, tuple)):
        return [tensor for each in argument for tensor in each]
    return argument


_REDUCE_OPS: dict[int, str] = (
    {op.value: name.lower() for name, op in dist.ReduceOp.RedOpType.__members__.items()}
    if dist.is_available()
    else {}
)


def _reduction(place: int, args: Sequence[Any]) -> str:
    return _reduce_op_name(args[place]) if len(args) > place else "sum"


def _reduce_op_name(reduce_op: Any) -> str:
    """Return the name of a reduction, given by name or wrapped by c10d in a ScriptObject."""
    if isinstance(reduce_op, str):
        return reduce_op
    try:
        return _REDUCE_OPS.get(reduce_op._get_method("op")(), "")
    except (AttributeError, RuntimeError):  # not readable before torch 2.11
        return ""
