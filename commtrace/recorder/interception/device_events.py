"""Completion times of communication on accelerators, read from device events without blocking.

Waiting for a call on an accelerator makes a stream wait, not the program. An event recorded behind
the wait on the same stream is reached when the call is complete. The writer thread queries it
later. A second event, recorded on an idle stream at a known time, maps its time to the recorder's
clock. Nothing is recorded while a graph is being captured.

    program      issue ── wait ── event ──────────────────────────────
    device                          └ reached: complete
    writer                 origin ·········· query ── complete_ns = origin + elapsed_time

If the program waits late, after other work on its stream, the reported completion is as late.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call

_NS_PER_MS = 1_000_000
_MAX_EXPECTED = 10_000
# An elapsed time is a float with a 24-bit mantissa: about a microsecond in ten seconds.
_ORIGIN_LASTS_NS = 10_000_000_000
# `cudaStreamCaptureModeRelaxed` of CUDA's runtime.
_RELAXED = 2


class Event(Protocol):
    """A point in a stream, with its time."""

    def query(self) -> bool:
        """Return whether the device has reached the event."""
        ...

    def synchronize(self) -> None:
        """Block until the device has reached the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to another; both must have been reached."""
        ...


class Device(Protocol):
    """Interface to an accelerator."""

    def is_capturing(self) -> bool:
        """Return whether this thread's work is captured into a graph instead of being run."""
        ...

    def record_on_current_stream(self) -> Event:
        """Record an event on the current stream of this thread."""
        ...

    def record_on_idle_stream(self) -> Event:
        """Record an event on a stream that carries no other work."""
        ...

    def querying(self) -> Any:
        """Return a context in which events may be queried while other threads capture graphs."""
        ...


class TorchDevice:
    """Accelerator as torch exposes it: `torch.cuda` and modules like it."""

    def __init__(self, device_type: str) -> None:
        self._module: Any = torch.get_device_module(device_type)
        self._stream: Any = None
        self._exchange_mode = _capture_mode_exchange() if device_type == "cuda" else None

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured."""
        ask = getattr(self._module, "is_current_stream_capturing", None)
        return ask is not None and ask()

    def record_on_current_stream(self) -> Event:
        """Record an event on the current stream."""
        return self._event_on(self._module.current_stream())

    def record_on_idle_stream(self) -> Event:
        """Record an event on the recorder's own stream."""
        if self._stream is None:
            self._stream = self._module.Stream()
        return self._event_on(self._stream)

    def _event_on(self, stream: Any) -> Event:
        event = self._module.Event(enable_timing=True)
        event.record(stream)
        return event

    @contextmanager
    def querying(self) -> Iterator[None]:
        """Keep this thread's queries from invalidating a capture of another thread."""
        if self._exchange_mode is None:
            yield
            return
        mode = ctypes.c_int(_RELAXED)
        self._exchange_mode(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange_mode(ctypes.byref(mode))


def _capture_mode_exchange() -> Any:
    """Return CUDA's `cudaThreadExchangeStreamCaptureMode`.

    Raises:
        OSError: the CUDA runtime library was not found.
        AttributeError: the library does not export the function.
    """
    major = (torch.version.cuda or "").partition(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}").cudaThreadExchangeStreamCaptureMode


class DeviceEvents:
    """Calls of an accelerator that were waited for and are not known to be complete."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._expected: deque[tuple[Event, Event, int, Call]] = deque()
        self._origin: tuple[Event, int] | None = None
        self._lock = threading.Lock()

    def expect(self, call: Call) -> bool:
        """Watch for the completion of a call; return False if full or during a graph capture."""
        if len(self._expected) >= _MAX_EXPECTED or self._device.is_capturing():
            return False
        if self._origin is None:
            self._origin = self._new_origin()
        # Without the lock: a deque's operations are atomic, and a query takes what it finds.
        self._expected.append((self._device.record_on_current_stream(), *self._origin, call))
        return True

    def query(self) -> None:
        """Set the completion time of calls that have completed since the last query."""
        with self._lock, self._device.querying():
            # Bounded by the present length, since calls in progress are appended again.
            for _ in range(len(self._expected)):
                self._query(*self._expected.popleft())
            if self._origin is not None and now() - self._origin[1] > _ORIGIN_LASTS_NS:
                self._origin = self._new_origin()

    def _query(self, event: Event, origin: Event, origin_ns: int, call: Call) -> None:
        if event.query():
            elapsed = round(origin.elapsed_time(event) * _NS_PER_MS)
            call.completed_on_device(origin_ns + elapsed)
        else:
            self._expected.append((event, origin, origin_ns, call))

    def forget(self) -> None:
        """Stop watching the calls that are not complete yet."""
        with self._lock:
            while self._expected:
                *_, call = self._expected.popleft()
                call.give_up_completion()

    def _new_origin(self) -> tuple[Event, int]:
        before = now()
        event = self._device.record_on_idle_stream()
        event.synchronize()
        # The event was reached in between; the middle halves the largest error.
        return event, (before + now()) // 2


class Devices:
    """Accelerators of this process, discovered when a call on them is first waited for."""

    def __init__(self) -> None:
        self.events: dict[str, DeviceEvents | None] = {}

    def expect(self, call: Call) -> None:
        """Watch for a call's completion if its device supports events; otherwise it stays unknown.

        A device that fails once is not used again. Re-raises the device's exception.
        """
        device = call.request.device
        try:
            if device not in self.events:
                self.events[device] = None
                self.events[device] = DeviceEvents(TorchDevice(device))
            events = self.events[device]
            if events is not None and events.expect(call):
                call.watch()
            else:
                call.settle()
        except Exception:
            call.give_up_completion()
            self._give_up(device)
            raise

    def query(self) -> None:
        """Set the completion time of calls completed since the last query.

        Re-raises a device's exception.
        """
        for device, events in list(self.events.items()):
            if events is not None:
                try:
                    events.query()
                except Exception:
                    self._give_up(device)
                    raise

    def _give_up(self, device: str) -> None:
        events = self.events.get(device)
        self.events[device] = None
        if events is not None:
            events.forget()
