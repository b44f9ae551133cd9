"""Times at which the data of calls was ready, and at which an operator first used the result.

`OperatorMode` notes each operator here. Data is *ready* at the end of the last operator that wrote
into its storage, or at the completion of the collective whose result it is. A broadcast's data has
been ready since an earlier broadcast if it was only copied since then. A result is *used* at the
start of the first operator that takes it, or of the call that sends it. Views neither write nor
use. Storages are identified by their addresses, so this extends no memory's lifetime.

Only calls on the CPU are covered: on an accelerator, the host's operators end before their data is
written. A compiled function's operators are not seen, so once there is such a function, no more
data is known to be ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import get_native_id
from typing import Any

import torch

from commtrace.recorder.events.broadcasts import BroadcastContents
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.casts import Casts
from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.results import Result
from commtrace.recorder.events.signature import RESULT
from commtrace.recorder.operator_kinds import OperatorKind
from commtrace.torch_internals.compilation import has_compiled
from commtrace.torch_internals.tensors import address_of, awaited_tensor

_MAX_WRITTEN = 1 << 16
_TENSOR = torch.Tensor
_MAX_UNUSED = 256
_UNKNOWN = -1


class DataTimes:
    """Last writes into storages, and results that operators may still use another part of.

    Attributes:
        written: end of the last operator that wrote into a storage, or the call that did.
        unused: results that are not used yet, or only in a single shard, by their storages.
        sending: what asynchronous calls send and do not write to, by storage.
        casts: data cast from 16 bits, and results cast to 16 bits.
    """

    __slots__ = ("_broadcasts", "casts", "sending", "unused", "written")

    def __init__(self) -> None:
        self.written: dict[int, int | Call] = {}
        self.unused: dict[int, Result] = {}
        self.sending: dict[int, Result] = {}
        self.casts = Casts(self.written)
        self._broadcasts = BroadcastContents(self.written)

    def _use(
        self,
        found: dict[int, list[torch.Tensor]],
        kind: OperatorKind | None,
        at_ns: int,
        result: Any,
    ) -> Result | None:
        """Note that an operator or a call has begun to use results of calls.

        Args:
            found: its arguments that are results of calls, by storage.
            kind: the operator's kind; None for a call.
            at_ns: when it began.
            result: the tensor that it has made; None if it is another's.

        Returns:
            The copy of results that the operator has returned, if any.
        """
        is_moving = kind is not None and kind.keeps_places and type(result) is _TENSOR
        if is_moving and len(found) > 1 and (joined := self._joined(found, result)) is not None:
            joined.call.used(at_ns)
            return joined
        copy: Result | None = None
        for address, views in found.items():
            known = self.unused.pop(address, None)
            if known is None:  # a copy of what the operator has used all of just now
                continue
            if self.written.get(address) is not known.mark:  # the memory was given out again
                known.close()
                continue
            is_whole = known.is_all(views[0])
            if not is_whole:
                views = [each for each in views if known.has(each)]
                if not views:  # another part of a large buffer
                    self.unused[address] = known
                    continue
            known.call.used(at_ns)
            made = known.copied(views, result) if is_moving else None
            if made is not None:
                self.unused[address] = known
                if copy is not None:
                    copy.join(made)
                copy = copy or made
            elif not is_whole and known.use(views):
                self.unused[address] = known
            elif known.use_all():
                for each in known.known_copies():
                    if self.unused.get(each.address) is each:
                        del self.unused[each.address]
        return copy

    def _joined(self, found: dict[int, list[torch.Tensor]], copy: Any) -> Result | None:
        """Return the copy into which an operator has joined all tensors that a call received."""
        parts = [self.unused[address] for address in found]
        call = parts[0].call
        if len(parts) != len(call.request.group.ranks):
            return None
        for (address, views), part in zip(found.items(), parts, strict=True):
            if part.call is not call or self.written.get(address) is not part.mark:
                return None
            if len(views) > 1 or not part.is_all(views[0]):
                return None
        if copy.numel() != sum([views[0].numel() for views in found.values()]):
            return None
        for address in found:
            del self.unused[address]
        return Result(call, copy)

    def _results_in(
        self, given: Any, found: dict[int, list[torch.Tensor]]
    ) -> dict[int, list[torch.Tensor]]:
        """Return the arguments that are results, or views of them, by their storages."""
        unused = self.unused
        for each in given:
            if isinstance(each, _TENSOR):
                tensor = each if type(each) is _TENSOR else awaited_tensor(each)
                address = address_of(tensor)
                if address in unused:
                    found.setdefault(address, []).append(tensor)
            elif isinstance(each, (list, tuple)):
                self._results_in(each, found)
        return found

    def ran(
        self, kind: OperatorKind, args: Sequence[Any], result: Any, begin_ns: int, end_ns: int
    ) -> None:
        """Note an operator that has run."""
        place = kind.moved
        if place is None:
            self._ran(kind, args, result, begin_ns, end_ns)
            return
        if kind.is_new:
            self.made(kind, args, result, begin_ns, end_ns)
        elif self._broadcasts.contents and kind.overwrites and _is_onto_itself(args):
            return
        else:
            self._ran(kind, args, result, begin_ns, end_ns)
        given = args[place]
        results: Sequence[torch.Tensor] = (result,)
        if isinstance(given, _TENSOR) and isinstance(result, _TENSOR):
            given = (given,)
        else:
            given, results = [*tensors_in((given,))], [*tensors_in(results)]
        self.casts.ran(given, results, end_ns)
        if self._broadcasts.contents:
            self._broadcasts.moved(given, results, end_ns)

    def _ran(
        self, kind: OperatorKind, args: Sequence[Any], result: Any, begin_ns: int, end_ns: int
    ) -> None:
        if self.sending:
            self._overwrite(kind, args, result, begin_ns)
        if self.unused and (found := self._results_in(args, {})):
            if self._is_the_backend_s(found):
                return
            if kind.overwrites:
                found = self._results_in(args[1:], {})
            self._use(found, kind, begin_ns, None)
        self.ended(kind, args, result, end_ns)

    def _is_the_backend_s(self, found: Iterable[int]) -> bool:
        """Return whether a backend copies to the result of a call, on a thread of its own."""
        calls = [self.unused[address].call for address in found]
        running = [call for call in calls if call.complete_ns < 0]
        return bool(running) and get_native_id() not in {call.thread for call in running}

    def made(
        self, kind: OperatorKind, args: Sequence[Any], result: Any, begin_ns: int, end_ns: int
    ) -> None:
        """Note an operator that has run and returned a tensor of its own."""
        found = self._results_in(args, {}) if self.unused else None
        moved = self._use(found, kind, begin_ns, result) if found else None
        try:
            address = result.data_ptr()
        except RuntimeError:  # a sparse one
            return
        former = self.unused.pop(address, None)
        if former is not None:  # the memory was given out again
            former.close()
        self.written[address] = end_ns
        if moved is not None:
            moved.mark = end_ns
            self.unused[address] = moved

    def ended(self, kind: OperatorKind, args: Sequence[Any], result: Any, end_ns: int) -> None:
        """Note the end of an operator, with what it returned and wrote to."""
        self._write(result, end_ns)
        for place in kind.written:
            if place < len(args) and (kind.training is None or args[kind.training]):
                self._write(args[place], end_ns)

    def _write(self, given: Any, at: int | Call) -> None:
        if isinstance(given, torch.Tensor):
            self.written[address_of(given)] = at
        elif isinstance(given, (list, tuple)):
            for each in given:
                self._write(each, at)

    def _overwrite(self, kind: OperatorKind, args: Sequence[Any], result: Any, at_ns: int) -> None:
        """Note writes of an operator into what asynchronous calls still send."""
        written = [args[place] for place in kind.written if place < len(args)]
        if written and kind.training is not None and not args[kind.training]:
            return
        for each in tensors_in(written) if written else (result,):
            if not isinstance(each, _TENSOR):
                continue
            address = address_of(each)
            if address not in self.sending:
                continue
            sent = self.sending[address]
            if sent.has(each) and sent.call.thread == get_native_id():
                del self.sending[address]
                sent.call.overwritten(at_ns)

    def issued(self, call: Call, args: Sequence[Any], at_ns: int) -> None:
        """Note a call that is about to be made with these arguments."""
        request = call.request
        if request.device != "cpu" or not request.is_computed:
            return
        sent, received = request.signature.sent, request.signature.received
        if sent is not None:
            tensors = tensors_of(args[sent])
            addresses = [address_of(each) for each in tensors]
            ready_ns = self._send(tensors, addresses, at_ns)
            if request.signature.kind == "broadcast":
                earlier_ns = self._broadcasts.sent(call, tensors)
                ready_ns = earlier_ns if min(earlier_ns, ready_ns) >= 0 else ready_ns
            call.had_ready(ready_ns)
            self.casts.sent(call, addresses)
            if sent == received:
                self._receive(call, tensors, addresses)
                return
            if request.is_async:
                sending = self.sending
                for tensor, address in zip(tensors, addresses, strict=True):
                    sending[address] = Result(call, tensor)
                if len(sending) > _MAX_UNUSED:
                    del sending[next(iter(sending))]
        if received is not None and received != RESULT:
            self.returned(call, args[received])

    def returned(self, call: Call, result: Any) -> None:
        """Note the tensors that receive the result of a call."""
        tensors = tensors_of(result)
        self._receive(call, tensors, [address_of(each) for each in tensors])

    def _receive(
        self, call: Call, tensors: Sequence[torch.Tensor], addresses: Sequence[int]
    ) -> None:
        written, unused = self.written, self.unused
        for tensor, address in zip(tensors, addresses, strict=True):
            former = unused.get(address)
            if former is not None:
                former.close()
            written[address] = call
            unused[address] = Result(call, tensor)
        call.expect_uses()
        if len(unused) > _MAX_UNUSED:
            unused.pop(next(iter(unused))).close()
        if len(written) > _MAX_WRITTEN:
            written.clear()

    def _send(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int], at_ns: int) -> int:
        """Note that a call uses the tensors, and return when all of them were written.

        -1 if this is unknown for any of them.
        """
        unused, written = self.unused, self.written
        found: dict[int, list[torch.Tensor]] = {}
        for tensor, address in zip(tensors, addresses, strict=True):
            if address in unused:
                found.setdefault(address, []).append(tensor)
        if found:
            self._use(found, None, at_ns, None)
        ready_ns, is_known = _UNKNOWN, not has_compiled()
        for address in addresses:
            at = _UNKNOWN if address < 0 else written.get(address, _UNKNOWN)
            written_ns = at if isinstance(at, int) else at.complete_ns
            if written_ns < 0:
                is_known = False
            elif written_ns > ready_ns:
                ready_ns = written_ns
        return ready_ns if is_known else _UNKNOWN

    def forget(self) -> None:
        """Drop all times."""
        self.written.clear()
        self.casts.forget()
        self._broadcasts.forget()
        self.stepped()

    def stepped(self) -> None:
        """Note the end of an optimizer's step; results not used by then count as unused."""
        for each in self.unused.values():
            each.close()
        self.unused.clear()
        self.sending.clear()


def _is_onto_itself(args: Sequence[Any]) -> bool:
    """Return whether an operator that overwrites its first argument copies it from itself."""
    target, source = args[:2] if len(args) > 1 else (None, None)
    return (
        isinstance(target, _TENSOR)
        and isinstance(source, _TENSOR)
        and target.dtype is source.dtype
        and (address := address_of(target)) >= 0
        and address == address_of(source)
        and target.storage_offset() == source.storage_offset()
        and (target.shape, target.stride()) == (source.shape, source.stride())
    )


def tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among some values, also those in lists."""
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from tensors_in(each)
