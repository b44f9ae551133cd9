"""Recorder of every communication call of this process, active while any recording listens.

`listen` reports every event to a buffer until `Listening.stop`. A layer imports only from those
below it:

    listening        connects buffers; `selfcheck` proves that recording is on
    values/          fingerprints of tensors, if a recording wants them
    recorder         turns intercepted operators into calls and hands them to the buffers
    interception/    sees calls, waits, operators and the completion on devices
    attribution/     finds the phase, the module call and the user's line of a call
    events/          requests, calls, their numbering, and the buffers that hold and write them
    thread_state     per-thread state, in parts
"""

from __future__ import annotations

from commtrace.recorder.attribution.pipeline_stages import acting
from commtrace.recorder.events.buffer import Buffer
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.sampled_buffer import SampledBuffer
from commtrace.recorder.events.sink import OperatorSpan, Sink
from commtrace.recorder.listening import (
    HOST_EVENTS,
    OBSERVER,
    Listening,
    is_heard,
    listen,
    ranks_changed,
)
from commtrace.recorder.recorder import RECORDER
from commtrace.recorder.thread_state import CURRENT

__all__ = [
    "CURRENT",
    "HOST_EVENTS",
    "OBSERVER",
    "RECORDER",
    "Buffer",
    "Call",
    "Listening",
    "OperatorSpan",
    "SampledBuffer",
    "Sink",
    "acting",
    "is_heard",
    "listen",
    "ranks_changed",
]
