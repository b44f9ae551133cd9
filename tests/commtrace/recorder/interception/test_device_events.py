"""Completion on an accelerator, with a stand-in: a clock and events without hardware."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.recorder import RECORDER
from commtrace.recorder.clock import now
from commtrace.recorder.events import call as call_module
from commtrace.recorder.events.call import Call
from commtrace.recorder.failures import Failures
from commtrace.recorder.interception import device_events
from commtrace.recorder.interception.device_events import DeviceEvents, Devices
from commtrace.recorder.interception.pending import PendingCalls
from commtrace.recorder.thread_state import ThreadState
from dtensor_core.testing import run_processes
from tests.commtrace.recorder.recorded import calls, unplaced_call

MS = 1_000_000
STARTED_NS = 123_456_789
"""Reading of the recorder's clock at time 0 of the device's clock."""


class StandInEvent:
    """An event that completes at a given time of the device's clock."""

    def __init__(self, device: StandIn, reached_ns: int) -> None:
        self.device, self.reached_ns = device, reached_ns

    def query(self) -> bool:
        self.device.asked_by.add(threading.get_ident())
        assert self.device.is_asking
        return self.device.now_ns >= self.reached_ns

    def synchronize(self) -> None:
        assert self.device.now_ns >= self.reached_ns, "the program would wait for the device"

    def elapsed_time(self, end_event: Any) -> float:
        return (end_event.reached_ns - self.reached_ns) / MS


class StandIn:
    """A device whose stream is busy until `busy_until_ns`; its side stream is idle."""

    def __init__(self) -> None:
        self.busy_until_ns = 0
        self.is_graph = self.is_asking = False
        self.asked_by: set[int] = set()
        self.num_events = self.num_origins = 0

    @property
    def now_ns(self) -> int:
        return now() - STARTED_NS

    def is_capturing(self) -> bool:
        return self.is_graph

    def record_on_current_stream(self) -> StandInEvent:
        self.num_events += 1
        return StandInEvent(self, max(self.busy_until_ns, self.now_ns))

    def record_on_idle_stream(self) -> StandInEvent:
        self.num_origins += 1
        return StandInEvent(self, self.now_ns)

    @contextmanager
    def querying(self) -> Iterator[None]:
        self.is_asking = True
        yield
        self.is_asking = False


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 10 * STARTED_NS

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    hand = Clock()
    monkeypatch.setattr(device_events, "now", hand)
    monkeypatch.setitem(globals(), "now", hand)
    return hand


def waited(device: StandIn | None, clock: Clock, devices: Devices, work_ns: int = 0) -> Call:
    """A call issued just now, and waited for by a stream that is busy for `work_ns`."""
    call = unplaced_call()
    call.request.device = "standin"
    call.issued(clock.now)
    if device is not None:
        device.busy_until_ns = device.now_ns + work_ns
    devices.expect(call)
    return call


def devices_of(device: Any) -> Devices:
    devices = Devices()
    devices.events["standin"] = DeviceEvents(device)
    return devices


def test_completion_is_when_the_event_is_reached_and_not_when_it_is_asked_for(
    clock: Clock,
) -> None:
    device = StandIn()
    devices = devices_of(device)
    call = waited(device, clock, devices, 5 * MS)
    issue = clock.now
    devices.query()
    assert (call.complete_ns, call.is_over()) == (-1, False)
    clock.now += 80 * MS
    devices.query()
    assert call.complete_ns == pytest.approx(issue + 5 * MS, abs=1000)
    assert call.is_over()


def test_the_recorders_clock_is_found_again_now_and_then(clock: Clock) -> None:
    device = StandIn()
    devices = devices_of(device)
    for _ in range(30):
        call = waited(device, clock, devices, MS)
        issue = clock.now
        clock.now += 1_000 * MS
        devices.query()
        assert call.complete_ns == pytest.approx(issue + MS, abs=1000)
    assert 2 <= device.num_origins <= 4


def test_nothing_is_recorded_in_a_graph_that_is_being_captured(clock: Clock) -> None:
    device = StandIn()
    devices = devices_of(device)
    device.is_graph = True
    call = waited(device, clock, devices)
    assert (device.num_events, device.num_origins) == (0, 0)
    assert (call.complete_ns, call.is_over()) == (-1, True)


def test_what_is_expected_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_events, "_MAX_EXPECTED", 3)
    device = StandIn()
    devices = devices_of(device)
    found = [waited(device, clock, devices, MS) for _ in range(5)]
    assert [call.is_over() for call in found] == [False, False, False, True, True]


@pytest.mark.parametrize(("device_name", "complete_ms"), [("standin", 30), ("cpu", 0)])
def test_a_call_without_a_handle_is_complete_once_its_stream_has_run_it(
    clock: Clock, device_name: str, complete_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "now", clock)
    device, pending = StandIn(), PendingCalls(Failures())
    pending.devices = devices_of(device)
    device.busy_until_ns = device.now_ns + 30 * MS
    call = unplaced_call()
    call.request.device = device_name
    call.issued(issue := clock.now)
    pending.returned(call, ([torch.ones(4)], None), ThreadState())
    clock.now += 100 * MS
    pending.query_devices()
    assert call.complete_ns - issue == pytest.approx(complete_ms * MS, abs=1000)
    assert call.is_over()


class Broken(StandIn):
    """A device that fails when it is queried."""

    @contextmanager
    def querying(self) -> Iterator[None]:
        raise RuntimeError("a broken device")
        yield


def test_a_device_that_fails_is_not_asked_again(clock: Clock) -> None:
    device = Broken()
    devices = devices_of(device)
    call = waited(device, clock, devices)
    with pytest.raises(RuntimeError, match="a broken device"):
        devices.query()
    assert (call.complete_ns, call.is_over()) == (-1, True)
    devices.query()
    assert waited(device, clock, devices).is_over()
    assert device.num_events == 1


def test_a_device_that_torch_does_not_know_is_reported_once(clock: Clock) -> None:
    devices = Devices()
    with pytest.raises(RuntimeError):
        waited(None, clock, devices)
    assert waited(None, clock, devices).is_over()


def recorded_on_a_stand_in() -> list[Any]:
    """Record gloo calls that pretend to run on a device whose stream is busy for a while."""
    device = StandIn()
    issue = RECORDER.issue

    def pretending(*args: Any) -> Any:
        call = issue(*args)
        if call is not None:
            call.request.device = "standin"
        return call

    with commtrace.record(detail="collective") as recording:
        RECORDER.pending.devices.events["standin"] = DeviceEvents(device)
        RECORDER.issue = pretending  # type: ignore[method-assign]
        try:
            device.busy_until_ns = device.now_ns + 500 * MS
            dist.all_reduce(torch.ones(4))
            before = calls(recording)[0].complete_ns
            threading.Event().wait(1)
            device.busy_until_ns = device.now_ns + 20 * MS
            dist.all_reduce(torch.ones(4), async_op=True).wait()  # type: ignore[union-attr]
        finally:
            del RECORDER.issue  # type: ignore[method-assign]
    taken = [event.complete_ns - event.issue_ns for event in calls(recording)]
    return [before, taken, len(device.asked_by)]


def test_completion_is_taken_from_events_that_the_writing_thread_queries() -> None:
    for before, taken, num_threads in run_processes(recorded_on_a_stand_in, 2):
        assert before == -1  # it was not complete, and nobody waited until it was
        assert 300 * MS < taken[0] <= 501 * MS
        assert 0 < taken[1] < 400 * MS
        assert num_threads >= 2


def test_no_device_is_asked_for_what_is_on_the_cpu() -> None:
    assert run_processes(_on_cpu, 2) == [0, 0]


def _on_cpu() -> int:
    with commtrace.record(detail="collective"):
        dist.all_reduce(torch.ones(4))
    return len(RECORDER.pending.devices.events)
