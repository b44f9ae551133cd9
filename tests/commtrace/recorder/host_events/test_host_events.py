"""Events on the host: compilations, data loaders, exceptions and pauses; and what they cost."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import commtrace
from commtrace.recorder import HOST_EVENTS
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events import pauses
from commtrace.recorder.host_events.exceptions import Exceptions
from commtrace.recorder.host_events.ongoing import LONG_NS, Ongoing
from commtrace.tracefile import Trace


def events(recording: commtrace.Recording, *kinds: str) -> list[dict[str, Any]]:
    trace: Trace = recording.trace()
    table = trace.tables["host_events"]
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    return [row for row in rows if row["kind"] in kinds]


def line_here() -> int:
    return sys._getframe(1).f_lineno


def batches(number: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(2 * number, 3)), batch_size=2)


def test_a_compilation_states_where_and_a_second_one_which_guard_failed() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    with commtrace.record() as recording:
        compiled(torch.ones(4))
        line = line_here() - 1
        compiled(torch.ones(4))
        compiled(torch.ones(5))
    rows = events(recording, "compile", "recompile")  # two rows if one takes longer than LONG_NS
    first, second = {row["at_ns"]: row for row in rows}.values()
    assert (first["kind"], second["kind"]) == ("compile", "recompile")
    assert (first["source_line"], second["source_line"]) == (line, line + 3)
    assert first["source_file"] == __file__
    assert "size mismatch at index 0. expected 4, actual 5" in second["text"]
    assert min(first["duration_ns"], second["duration_ns"]) > 0
    assert first["at_ns"] + first["duration_ns"] <= second["at_ns"]


def test_the_end_of_a_data_loader_is_noted_with_its_batches_and_step() -> None:
    with commtrace.record() as recording:
        for _ in batches(3):
            recording.step()
    (row,) = events(recording, "data_end")
    assert row["text"] == "the data loader had no batch after 3"
    assert (row["step"], row["source_function"]) == (3, sys._getframe().f_code.co_name)
    assert events(recording, "data_wait") == []


def test_a_long_wait_for_a_batch_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.recorder.host_events.data_loading.LONG_NS", 0)
    with commtrace.record() as recording:
        next(iter(batches(1)))
    (row,) = events(recording, "data_wait")
    assert row["duration_ns"] > 0


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


OF_312 = sys.version_info >= (3, 12)


def test_an_exception_that_leaves_the_outermost_module_is_noted_once() -> None:
    nested = nn.Sequential(nn.Sequential(Failing(ValueError("the batch is empty\nmore"))))
    with commtrace.record() as recording:
        with pytest.raises(ValueError, match="the batch is empty"):
            nested(torch.ones(1))
        nn.Linear(2, 2)(torch.ones(2))
    (row,) = events(recording, "exception")
    assert row["text"] == "ValueError: the batch is empty"
    assert row["source_function"] == "forward"


def test_an_exception_of_a_collective_is_noted() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with commtrace.record() as recording, pytest.raises(RuntimeError):
            dist.all_to_all_single(torch.empty(3), torch.ones(4), [3], [3])
    finally:
        dist.destroy_process_group()
    (row,) = events(recording, "exception")
    assert row["text"].startswith("RuntimeError: ")
    assert row["source_file"] == __file__


def test_an_error_that_fails_to_print_is_noted_by_its_type() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with commtrace.record() as recording, pytest.raises(Silent):
        Failing(Silent())(torch.ones(1))
    assert [row["text"] for row in events(recording, "exception")] == ["Silent"]


@pytest.mark.skipif(OF_312, reason="from 3.12 on, all exceptions that are caught are known")
def test_the_end_of_an_iterator_is_no_exception() -> None:
    with commtrace.record() as recording, pytest.raises(StopIteration):
        Failing(StopIteration())(torch.ones(1))
    assert events(recording, "exception") == []


def test_only_exceptions_caught_in_the_users_code_count() -> None:
    kept: list[HostEvent] = []
    source = Exceptions(kept.append)
    error = KeyError("missing")
    source._handled(line_here.__code__, 0, error)
    assert [each.text for each in kept] == ["KeyError: 'missing'"]
    library: dict[str, Any] = {"__name__": "torch.nn", "handle": source._handled, "error": error}
    exec("handle(None, 0, error)", library)
    assert len(kept) == 1


@pytest.mark.skipif(not OF_312, reason="sys.monitoring is of Python 3.12 and later")
def test_exceptions_that_are_caught_are_known() -> None:
    with commtrace.record() as recording:
        try:
            raise ValueError("caught")
        except ValueError:
            pass
    assert [row["text"] for row in events(recording, "exception")] == ["ValueError: caught"]


def test_a_long_garbage_collection_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_LONG_COLLECTION_NS", 0)
    with commtrace.record() as recording:
        gc.collect()
    rows = events(recording, "gc_pause")
    assert "a collection of generation 2" in {row["text"] for row in rows}


def test_a_time_in_which_no_thread_ran_is_noted() -> None:
    kept: list[HostEvent] = []
    source = pauses.Pauses(kept.append)
    source.poll()
    source.rest()
    source.poll()
    assert kept == []
    source._rested = time.monotonic_ns() - 5_000_000_000, time.process_time_ns()
    source.poll()
    (event,) = kept
    assert event.kind == "not_running"
    assert 5_000_000_000 <= event.duration < 60_000_000_000
    assert "0.0 s of processor time" in event.text


def test_what_goes_on_for_long_is_kept_before_it_ends_and_again_then() -> None:
    kept: list[HostEvent] = []
    ongoing = Ongoing(kept.append)
    event = HostEvent("compile", time.monotonic_ns() - 2 * LONG_NS, 0, 7)
    ongoing.begin(event)
    ongoing.poll()
    ongoing.poll()
    assert [(each.at, each.duration) for each in kept] == [(event.at, -1)]
    ongoing.end(event, least_ns=1 << 60)
    assert [each.at for each in kept] == [event.at] * 2
    assert kept[1].duration >= 2 * LONG_NS
    ongoing.poll()
    assert len(kept) == 2


def callbacks() -> list[Any]:
    handler = torch._dynamo.callback.callback_handler
    frames: Any = sys.modules["torch._dynamo.convert_frame"]
    reasons = frames.get_and_maybe_log_recompilation_reasons
    return [
        *(list(handler.start_callbacks), list(handler.end_callbacks), reasons),
        *(list(gc.callbacks), _BaseDataLoaderIter.__next__),
    ]


def test_nothing_is_left_behind() -> None:
    before = callbacks()
    with commtrace.record():
        with commtrace.record():
            pass
        during = callbacks()
    assert all(one != other for one, other in zip(before, during, strict=True))
    assert callbacks() == before


def test_what_is_loaded_later_is_observed_from_the_next_poll_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = _BaseDataLoaderIter.__next__
    monkeypatch.delitem(sys.modules, "torch.utils.data.dataloader")
    with commtrace.record():
        assert _BaseDataLoaderIter.__next__ is original
        module = SimpleNamespace(_BaseDataLoaderIter=_BaseDataLoaderIter)
        monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", module)
        HOST_EVENTS.poll()
        assert _BaseDataLoaderIter.__next__ is not original
    assert _BaseDataLoaderIter.__next__ is original


def per_call_s(function: Callable[[], Any], times: int = 2000) -> float:
    begin = time.thread_time()
    for _ in range(times):
        function()
    return (time.thread_time() - begin) / times


def test_a_batch_costs_little() -> None:
    iterator = iter(DataLoader(list(range(100_000)), batch_size=None))
    plain = min(per_call_s(lambda: next(iterator)) for _ in range(3))
    with commtrace.record():
        recorded = min(per_call_s(lambda: next(iterator)) for _ in range(3))
    assert recorded - plain < 100e-6, (recorded, plain)
