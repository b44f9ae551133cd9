"""Times and operators at which the data of calls was ready, and at which results were first used.

`OperatorMode` notes each operator here. Data is *ready* at the end of the last operator that wrote
into its storage, or at the completion of the collective whose result it is. A broadcast's data has
been ready since an earlier broadcast if it was only copied since then. A result is *used* at the
start of the first operator that takes it, or of the call that sends it. Views neither write nor
use. Storages are identified by their addresses (see `marks`), so this extends no memory's lifetime.

Only calls on the CPU have times: on an accelerator, the host's operators end before their data is
written. A compiled function's operators are not seen, so once there is such a function, no more
data is known to be ready. In steps that have details, these are found here, too, since what an
operator needed are the operators and calls that wrote into its arguments.

The file exceeds the usual length, since every part of it reads and changes the same marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_native_id
from typing import Any

import torch

from commtrace.recorder.events.broadcasts import BroadcastContents, is_onto_itself
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.casts import Casts
from commtrace.recorder.events.marks import NO_ORIGIN, NOTHING, Mark, OperatorMark
from commtrace.recorder.events.operator_details import (
    MOST_DETAILED,
    OperatorDetail,
    OperatorDetails,
    tensors_in,
)
from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.results import Result
from commtrace.recorder.events.signature import RESULT
from commtrace.recorder.operator_kinds import OperatorKind
from commtrace.recorder.thread_state import CURRENT
from commtrace.torch_internals.autograd import current_graph_task_id
from commtrace.torch_internals.compilation import has_compiled
from commtrace.torch_internals.tensors import address_of, awaited_tensor

_TENSOR = torch.Tensor
_MAX_MARKS = 1 << 16
_MAX_UNUSED = 256
_UNKNOWN = -1


class DataTimes:
    """Last writes into storages, and results that operators may still use another part of.

    Attributes:
        written: marks of last writes into storages, by address.
        unused: results that are not used yet, or only in a single shard, by their storages.
        sending: what asynchronous calls send and do not write to, by storage.
        casts: data cast from 16 bits, and results cast to 16 bits.
        wants_details: the details of operators are found.
    """

    __slots__ = (
        "_broadcasts", "_details", "_num_to_detail", "casts", "sending", "unused", "wants_details",
        "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.written: dict[int, Mark] = {}
        self.wants_details = False
        self._num_to_detail = 0
        self._details = OperatorDetails(self.written)
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
        number: int,
    ) -> Result | None:
        """Note that an operator or a call has begun to use results of calls.

        Args:
            found: its arguments that are results of calls, by storage.
            kind: the operator's kind; None for a call.
            at_ns: when it began.
            result: the tensor that it has made; None if it is another's.
            number: the operator's number; -1 for a call.

        Returns:
            The copy of results that the operator has returned, if any.
        """
        is_moving = kind is not None and kind.keeps_places and type(result) is _TENSOR
        if is_moving and len(found) > 1 and (joined := self._joined(found, result)) is not None:
            joined.call.used(at_ns, number)
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
            known.call.used(at_ns, number)
            if not known.call.request.is_timed:  # its first use is all there is to know
                known.close()
                continue
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

    def want_details(self, are_wanted: bool) -> None:
        """Find the details of operators of a step that begins, or of none."""
        self._num_to_detail = MOST_DETAILED
        self.wants_details = are_wanted

    def ran(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        begin_ns: int,
        mark: OperatorMark,
    ) -> OperatorDetail | OperatorKind:
        """Note an operator that has run; return its kind, with its details if they are wanted.

        Args:
            kind: its kind.
            args: its positional arguments.
            kwargs: its others, or None.
            result: what it has returned.
            begin_ns: when it began.
            mark: its mark, without an origin.
        """
        if type(result) is kind.new and not self.unused and not self.wants_details:
            try:  # for most of them `_noted`, inlined
                self.written[result.data_ptr()] = mark
                return kind
            except RuntimeError:  # a sparse one
                return kind
        if kind.out:
            result = kwargs[kind.out]
        detail = kind
        if self.wants_details:
            number, end_ns, _ = mark
            detail, origin = self._details.of(kind, args, kwargs, result, number, begin_ns)
            mark = number, end_ns, origin
            self._num_to_detail -= 1
            if self._num_to_detail <= 0:
                self.wants_details = False
        self._noted(kind, args, result, begin_ns, mark)
        return detail

    def _noted(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        result: Any,
        begin_ns: int,
        mark: OperatorMark,
    ) -> None:
        """Note what an operator has used and written."""
        place = kind.moved
        if type(result) is kind.new or kind.is_new:
            self._made(kind, args, result, begin_ns, mark)
        elif not (self._broadcasts.contents and kind.overwrites and is_onto_itself(args)):
            self._ran(kind, args, result, begin_ns, mark)
        else:
            return
        if place is None:
            return
        given = args[place]
        results: Sequence[torch.Tensor] = (result,)
        if isinstance(given, _TENSOR) and isinstance(result, _TENSOR):
            given = (given,)
        else:
            given, results = [*tensors_in((given,))], [*tensors_in(results)]
        self.casts.ran(given, results, mark)
        if self._broadcasts.contents:
            self._broadcasts.moved(given, results, mark)

    def _ran(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        result: Any,
        begin_ns: int,
        mark: OperatorMark,
    ) -> None:
        if self.sending:
            self._overwrite(kind, args, result, begin_ns)
        if self.unused and (found := self._results_in(args, {})):
            if self._is_the_backend_s(found):
                return
            if kind.overwrites:
                found = self._results_in(args[1:], {})
            self._use(found, kind, begin_ns, None, mark[0])
        self._write(result, mark)
        for place in kind.written:
            if place < len(args) and (kind.training is None or args[kind.training]):
                self._write(args[place], mark)

    def _is_the_backend_s(self, found: Iterable[int]) -> bool:
        """Return whether a backend copies to the result of a call, on a thread of its own."""
        calls = [self.unused[address].call for address in found]
        running = [call for call in calls if call.complete_ns < 0]
        if not running or get_native_id() in {call.thread for call in running}:
            return False
        # Threads of the autograd engine use results, too, which are complete only on the device.
        is_timed = all([call.request.is_timed for call in running])
        return is_timed or (CURRENT.state.is_engine_thread and current_graph_task_id() < 0)

    def _made(
        self,
        kind: OperatorKind,
        args: Sequence[Any],
        result: Any,
        begin_ns: int,
        mark: OperatorMark,
    ) -> None:
        unused = self.unused
        found = self._results_in(args, {}) if unused else None
        moved = self._use(found, kind, begin_ns, result, mark[0]) if found else None
        try:
            address = result.data_ptr()
        except RuntimeError:  # a sparse one
            return
        if unused and (former := unused.pop(address, None)) is not None:
            former.close()  # the memory was given out again
        self.written[address] = mark
        if moved is not None:
            moved.mark = mark
            unused[address] = moved

    def waited(self, tensor: Any, result: Any) -> None:
        """Note that a wait has returned another tensor for the same result, as for fake tensors."""
        before, after = address_of(tensor), address_of(result)
        if before != after and before in self.written:
            self.written[after] = self.written[before]
            if before in self.unused:
                self.unused[after] = self.unused.pop(before)

    def _write(self, given: Any, mark: Mark) -> None:
        if isinstance(given, torch.Tensor):
            address = address_of(given)
            if address != _UNKNOWN:
                self.written[address] = mark
        elif isinstance(given, (list, tuple)):
            for each in given:
                self._write(each, mark)

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

    def issued(self, call: Call, args: Sequence[Any], at_ns: int, original: Any = None) -> None:
        """Note a call that is about to be made with these arguments.

        A functional collective may send a copy, which no operator is seen to make, of its own
        argument `original`.
        """
        request = call.request
        self._details.latest[request.group.rank] = call
        sent, received = request.signature.sent, request.signature.received
        if sent is not None:
            tensors = tensors_of(args[sent])
            addresses = [address_of(each) for each in tensors]
            if original is None:
                ready_ns = self._send(call, tensors, addresses, at_ns)
            else:
                own = [awaited_tensor(each) for each in tensors_of(original)]
                ready_ns = self._send(call, own, [address_of(each) for each in own], at_ns)
            if request.is_timed:
                self._note_sent(call, tensors, addresses, ready_ns)
            if sent == received:
                self._receive(call, tensors, addresses)
                return
        if received is not None and received != RESULT:
            self.returned(call, args[received])

    def _note_sent(
        self,
        call: Call,
        tensors: Sequence[torch.Tensor],
        addresses: Sequence[int],
        ready_ns: int,
    ) -> None:
        """Note what a call on the CPU sends, and when it had been written."""
        request = call.request
        if request.signature.kind == "broadcast":
            earlier_ns = self._broadcasts.sent(call, tensors)
            ready_ns = earlier_ns if min(earlier_ns, ready_ns) >= 0 else ready_ns
        call.had_ready(ready_ns)
        self.casts.sent(call, addresses)
        if request.is_async and request.signature.sent != request.signature.received:
            sending = self.sending
            for tensor, address in zip(tensors, addresses, strict=True):
                sending[address] = Result(call, tensor)
            if len(sending) > _MAX_UNUSED:
                del sending[next(iter(sending))]

    def returned(self, call: Call, result: Any) -> None:
        """Note the tensors that receive the result of a call."""
        tensors = tensors_of(result)
        self._receive(call, tensors, [address_of(each) for each in tensors])

    def _receive(
        self, call: Call, tensors: Sequence[torch.Tensor], addresses: Sequence[int]
    ) -> None:
        unused, written = self.unused, self.written
        if len(written) > _MAX_MARKS:
            written.clear()
        for tensor, address in zip(tensors, addresses, strict=True):
            former = unused.get(address)
            if former is not None:
                former.close()
            if address != _UNKNOWN:
                written[address] = call
            unused[address] = Result(call, tensor)
        call.expect_uses()
        if len(unused) > _MAX_UNUSED:
            unused.pop(next(iter(unused))).close()

    def _send(
        self,
        call: Call,
        tensors: Sequence[torch.Tensor],
        addresses: Sequence[int],
        at_ns: int,
    ) -> int:
        """Note that a call uses the tensors, and return when all of them were written.

        -1 if this is unknown for any of them.
        """
        unused, written = self.unused, self.written
        found: dict[int, list[torch.Tensor]] = {}
        for tensor, address in zip(tensors, addresses, strict=True):
            if address in unused:
                found.setdefault(address, []).append(tensor)
        if found:
            self._use(found, None, at_ns, None, _UNKNOWN)
        if has_compiled():
            return _UNKNOWN
        rank, op, origin = call.request.group.rank, _UNKNOWN, NO_ORIGIN
        times: list[int] = []
        for address in addresses:
            mark: Any = written.get(address, NOTHING)
            if type(mark) is tuple:
                number, end_ns, came_from = mark
                op = max(op, number)
            else:
                end_ns, came_from = mark.complete_ns, NO_ORIGIN
                if mark.request.group.rank == rank:
                    mark.sent_by(call)
                    came_from = mark.id
            origin = max(origin, came_from)
            times.append(end_ns if address >= 0 else _UNKNOWN)
        call.came_from(op, origin)
        return max(times) if times and min(times) >= 0 else _UNKNOWN

    def forget(self) -> None:
        """Drop all times."""
        self.written.clear()
        self._details.latest.clear()
        self.casts.forget()
        self._broadcasts.forget()
        self.stepped()

    def stepped(self) -> None:
        """Note the end of an optimizer's step; results not used by then count as unused."""
        for each in self.unused.values():
            each.close()
        self.unused.clear()
        self.sending.clear()
