"""Calls of a runtime that record events or wait, and the profiler's records of them.

    cudaEventRecord               the host records an event in a stream
    cudaStreamWaitEvent           it lets a stream wait for an event
    cudaEventSynchronize          it waits for an event, cudaStreamSynchronize for a stream,
    cudaDeviceSynchronize         and for all streams of a device
    cudaMemcpy                    it waits for some copies, depending on their direction
    cudaEventQuery                it does not wait, but the profiler enters it as `Event Sync`

Such a call states neither stream nor event. The records of category `cuda_sync` and `cuda_event`
do, which torch.profiler writes on request, and refer to calls by their `correlation`.
Source: CUpti_ActivitySynchronization and CUpti_ActivityCudaEvent of CUPTI; CuptiActivity.h of
Kineto; the CUDA runtime API and HIP's functions of the same names. Used by `spans`, which collects
them, and `sync_rows`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from commtrace.schema import DEVICE_SYNC, EVENT_RECORD, EVENT_SYNC, STREAM_SYNC, STREAM_WAIT

QUERY, COPY, ASYNC_COPY = "query", "copy", "async copy"
"""Kinds of calls that are no rows by themselves."""

RECORD_KINDS = {
    "Event Sync": EVENT_SYNC, "Stream Wait Event": STREAM_WAIT, "Stream Sync": STREAM_SYNC,
    "Context Sync": DEVICE_SYNC,
}  # fmt: skip
"""Kinds by the names of the profiler's records."""

_KINDS = {
    "EventRecord": EVENT_RECORD, "EventRecordWithFlags": EVENT_RECORD,
    "StreamWaitEvent": STREAM_WAIT, "EventSynchronize": EVENT_SYNC,
    "StreamSynchronize": STREAM_SYNC, "DeviceSynchronize": DEVICE_SYNC,
    "ThreadSynchronize": DEVICE_SYNC, "CtxSynchronize": DEVICE_SYNC,
    "EventQuery": QUERY, "StreamQuery": QUERY,
}  # fmt: skip
_FUNCTION = re.compile(r"(?:cuda|cu|hip|musa|mu)([A-Z][A-Za-z]*)(?:_(?:ptsz|ptds|spt|v\d+))*")
_COPYING = re.compile(r"(?:cuda|cu|hip|musa|mu)Memcpy(?!.*Batch)\w*")


# Tuples, since a profile has many.
class SyncCall(NamedTuple):
    """A call on the host, in ns of the rank's clock; its correlation is -1 if unknown."""

    kind: str
    start: int
    end: int
    thread: int
    correlation: int


class SyncRecord(NamedTuple):
    """The profiler's record of a wait; what it does not state is -1.

    Attributes:
        kind: Kind of the wait.
        start: Its begin, in ns of the rank's clock.
        end: Its end.
        correlation: Correlation of the call.
        device: Device that is waited for.
        stream: Stream that waits, or that the host waits for.
        of_stream: Stream in which the awaited event was recorded.
        recorded: Correlation of the call that recorded it.
    """

    kind: str
    start: int
    end: int
    correlation: int
    device: int
    stream: int
    of_stream: int
    recorded: int


@lru_cache(maxsize=4096)
def sync_kind(function: str) -> str:
    """Return the kind of a runtime's function; empty if it neither waits nor records.

    >>> sync_kind("cudaStreamWaitEvent_ptsz_v7000"), sync_kind("hipMemcpyWithStream")
    ('stream_wait', 'copy')
    """
    if _COPYING.fullmatch(function):
        return ASYNC_COPY if "Async" in function else COPY
    found = _FUNCTION.fullmatch(function)
    return _KINDS.get(found[1], "") if found else ""


_COMPLETED = re.compile(r"Memcpy (?:DtoH \(|HtoD \((?:Pinned|Host) )")
_STAGED = re.compile(r"Memcpy DtoH \(.*-> Pageable\)")


def waits_for_copy(kind: str, copy: str) -> bool:
    """Return whether a call of a kind may return only once a copy of a name is complete.

    A synchronous call waits for copies to the host, and from pinned memory; an asynchronous one may
    wait for a copy to pageable memory. HIP does not distinguish sorts of memory.
    Source: API synchronization behavior, in the reference of the CUDA runtime.
    """
    pattern = _COMPLETED if kind == COPY else _STAGED
    return pattern.match(copy) is not None
