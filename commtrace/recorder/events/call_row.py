"""Columns of a call in table `comm`: the numbers of each, and what alike calls share."""

from __future__ import annotations

from json import dumps
from typing import Any

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.location import text_of_stack
from commtrace.recorder.events.numbering import Numbering
from commtrace.recorder.events.texts import dtype_text, shapes_text, splits_text

_UNKNOWN = -1


def site_of(call: Call) -> tuple[Any, ...]:
    """Return a key of the row's columns other than the numbers.

    The request must outlive the key; code and operators, which enter by identity, live on.
    """
    location = call.location
    module_call, attribution = location.module_call, location.attribution
    return (
        call.request.identity(), call.region, call.thread, id(call.op), location.phase,
        module_call[0] if module_call else None, id(location.code), location.instruction,
        call.stack, attribution.key() if attribution else None, call.part[::2],
        call.cast_dtype, location.callers, call.wait_thread,
        location.via and (id(location.via[0]), location.via[1]),
    )  # fmt: skip


def numbers_of(call: Call, epoch: int, step: int, numbering: Numbering) -> tuple[int, ...]:
    """Return the columns that `spool.NUMBERS` names, in that order."""
    module_call, group = call.location.module_call, call.request.group
    issued, returned, completed = call.issue_ns, call.return_ns, call.complete_ns
    number, seq, op_id = numbering.of(call.id, call.seq, call.op_id, group)
    return (
        number,
        seq,
        issued + epoch,
        returned - issued if returned >= 0 else _UNKNOWN,
        call.blocked_ns(),
        completed + epoch if completed >= 0 else _UNKNOWN,
        step,
        module_call[1] if module_call else _UNKNOWN,
        op_id,
        call.sent_id,
        # A functional collective begins before the operator that sends.
        min(call.data_ready_ns, issued) + epoch if call.data_ready_ns >= 0 else _UNKNOWN,
        max(call.result_used_ns, issued) + epoch if call.result_used_ns >= 0 else _UNKNOWN,
        call.part.micro_batch,
        _UNKNOWN if call.follower is None else call.follower.part(),
        call.run_delay_ns,
        call.request.tag,
        call.wait_begin_ns + epoch if call.wait_begin_ns >= 0 else _UNKNOWN,
        call.first_wait_ns,
        *_ids_of_data(call, numbering),
    )


def row_of(call: Call, epoch: int, step: int, numbering: Numbering) -> tuple[Any, ...]:
    """Return the call as a row of table `comm`, in the order of its columns."""
    request, location = call.request, call.location
    group, place, attribution = request.group, location.place, location.attribution
    why = request.reason
    if why is None and attribution is not None and attribution.reason is not None:
        why = attribution.reason()
    numbers = numbers_of(call, epoch, step, numbering)
    number, seq, issue, duration, blocked, complete, step, module_call, op_id = numbers[:9]
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
        dtype_text(request.dtype),
        shapes_text(request.sent),
        shapes_text(request.received),
        request.payload,
        request.wire_bytes(),
        request.is_async,
        issue,
        duration,
        blocked,
        complete,
        step,
        location.phase,
        call.region,
        place.plain if place else "",
        place.class_name if place else "",
        module_call,
        call.thread,
        why.operator if why else str(call.op or ""),
        op_id,
        location.file,
        location.line,
        location.function,
        why.sentence if why else attribution.note() if attribution else "",
        why.argument if why else "",
        why.source if why else "",
        why.target if why else "",
        dumps(why.candidates) if why and why.candidates else "",
        why.payload_bytes if why else _UNKNOWN,
        attribution.carries if attribution else "",
        ",".join(location.parameter_names),
        text_of_stack(call.stack) if call.stack else "",
        numbers[9],  # sent_id
        request.device_name,
        _UNKNOWN,  # the stream
        "",
        "",
        _UNKNOWN,  # algorithm, protocol and channels are those of a kernel
        splits_text(request.input_splits),
        splits_text(request.output_splits),
        *numbers[10:12],  # data_ready_ns, result_used_ns
        splits_text(request.expert_rows),
        call.part.stage,
        call.part.micro_batch,
        call.part.direction,
        _UNKNOWN,  # the time on the device, which other tools measure
        *numbers[13:15],  # used_shard, run_delay_ns
        dtype_text(call.cast_dtype),
        numbers[15],  # tag
        location.callers.text if location.callers else "",
        *numbers[16:18],  # wait_begin_ns, first_wait_ns
        call.wait_thread,
        *numbers[18:22],  # data_op_id, data_call_id, used_by_op_id, used_by_call_id
        location.via_text,
    )


def _ids_of_data(call: Call, numbering: Numbering) -> tuple[int, int, int, int]:
    """Return the numbers of the operators and calls that its data came from, and went to."""
    group = call.request.group
    return (
        numbering.of_operator(call.data_op_id),
        numbering.of_call(call.data_call_id, group),
        numbering.of_operator(call.used_by_op_id),
        numbering.of_call(call.used_by_call_id, group),
    )
