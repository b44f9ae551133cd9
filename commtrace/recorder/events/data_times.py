"""Times at which the data of calls was ready, and at which an operator first used the result.

`OperatorMode` notes each operator here. Data is *ready* at the end of the last operator that wrote
into its storage, or at the completion of the collective whose result it is. A result is *used* at
the start of the first operator that is given it, or of the call that sends it. Views neither write
nor use. Storages are identified by their addresses, so this extends no memory's lifetime.

Only for calls on the CPU: on an accelerator, the host's operators end before their data is written.
Once a function has been compiled, whose operators are not seen, no more data is known to be ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.signature import RESULT
from commtrace.recorder.operator_kinds import OperatorKind
from commtrace.torch_internals.compilation import has_compiled
from commtrace.torch_internals.tensors import FakeTensor

_MAX_WRITTEN = 1 << 16
_MAX_UNUSED = 256
_UNKNOWN = -1


class DataTimes:
    """Last writes into storages, and results that no operator has used yet.

    Attributes:
        written: end of the last operator that wrote into a storage, or the call that did.
        unused: calls whose results have not been used, by the storages of these.
    """

    __slots__ = ("unused", "written")

    def __init__(self) -> None:
        self.written: dict[int, int | Call] = {}
        self.unused: dict[int, Call] = {}

    def use(self, given: Any, at_ns: int) -> None:
        """Note that an operator or a call begins to use its arguments."""
        unused = self.unused
        for each in given:
            if isinstance(each, torch.Tensor):
                address = _address(each)
                if address in unused:
                    unused.pop(address).used(at_ns)
            elif isinstance(each, (list, tuple)):
                self.use(each, at_ns)

    def ran(
        self, kind: OperatorKind, args: Sequence[Any], result: Any, begin_ns: int, end_ns: int
    ) -> None:
        """Note an operator that has run."""
        if self.unused:
            self.use(args, begin_ns)
        self.ended(kind, args, result, end_ns)

    def ended(self, kind: OperatorKind, args: Sequence[Any], result: Any, end_ns: int) -> None:
        """Note the end of an operator, with what it returned and wrote to."""
        self._write(result, end_ns)
        for place in kind.written:
            if place < len(args):
                self._write(args[place], end_ns)

    def _write(self, given: Any, at: int | Call) -> None:
        if isinstance(given, torch.Tensor):
            self.written[_address(given)] = at
        elif isinstance(given, (list, tuple)):
            for each in given:
                self._write(each, at)

    def issued(self, call: Call, args: Sequence[Any], at_ns: int) -> None:
        """Note a call that is about to be made with these arguments."""
        request = call.request
        if request.device != "cpu" or not request.is_computed:
            return
        signature = request.signature
        if signature.sent is not None:
            call.had_ready(self._send(tensors_of(args[signature.sent]), at_ns))
        if signature.received not in (None, RESULT):
            self.returned(call, args[signature.received])

    def returned(self, call: Call, result: Any) -> None:
        """Note the tensors that receive the result of a call."""
        written, unused = self.written, self.unused
        for tensor in tensors_of(result):
            address = _address(tensor)
            written[address] = unused[address] = call
        if len(unused) > _MAX_UNUSED:
            del unused[next(iter(unused))]
        if len(written) > _MAX_WRITTEN:
            written.clear()

    def _send(self, tensors: Sequence[torch.Tensor], at_ns: int) -> int:
        """Note that a call uses the tensors, and return when all of them were written.

        -1 if this is unknown for one of them.
        """
        unused, ready_ns, is_known = self.unused, _UNKNOWN, not has_compiled()
        for tensor in tensors:
            address = _address(tensor)
            if address in unused:
                unused.pop(address).used(at_ns)
            at = _UNKNOWN if address < 0 else self.written.get(address, _UNKNOWN)
            written_ns = at if isinstance(at, int) else at.complete_ns
            if written_ns < 0:
                is_known = False
            elif written_ns > ready_ns:
                ready_ns = written_ns
        return ready_ns if is_known else _UNKNOWN

    def forget(self) -> None:
        """Drop all times."""
        self.written.clear()
        self.unused.clear()

    def stepped(self) -> None:
        """Note the end of an optimizer's step: drop results that nothing has used."""
        self.unused.clear()


def _address(tensor: torch.Tensor) -> int:
    """Return where the storage of a tensor is; -1 if it has none, or an empty one.

    A new tensor begins where its storage does, so that its own address, which is cheaper, is equal.
    """
    if isinstance(tensor, FakeTensor):  # it would warn
        return _UNKNOWN
    try:
        return tensor.untyped_storage().data_ptr() or _UNKNOWN
    except (RuntimeError, NotImplementedError):
        return _UNKNOWN
