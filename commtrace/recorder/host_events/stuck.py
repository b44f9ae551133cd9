"""Stacks of the threads of all ranks, taken while some rank waits for a long time.

    rank 0    ... all_reduce ── 3 s ── asks ── 10 s ── asks ── 33 s ── asks ...
    rank 1    ... time.sleep ────────── answers ──────── answers ────── answers

A rank that waits asks by a file in the run's folder, as for dumps (see `dump_files`), and takes its
own stacks; without a folder it takes only these. Every rank that has made no call since then
answers. Answers are rows of kind `stuck` in its spool, which are written at once. All of this runs
on the recording's own thread, once a second, and takes no stack while nobody waits.

The time between two requests grows with the wait. Where waits are usual, the first request of a
wait comes later: the threshold doubles with every 50 rounds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from commtrace.errors import OutputError
from commtrace.recorder.attribution.stack_frames import USER, kind_of, stack_of
from commtrace.recorder.caller_chain import code_and_line
from commtrace.recorder.clock import now
from commtrace.recorder.events.facts import process_rank
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events.note import Keep, nearest_of_user
from commtrace.recorder.requests import Requests
from commtrace.schema import STUCK
from commtrace.tracefile.dump_files import MOST_FRAMES, STACKS_REQUEST, request_dumps

SECOND_NS = 1_000_000_000
WAITING_NS = 3 * SECOND_NS
"""Time in a call after which a rank asks for stacks."""
_QUIET_NS = SECOND_NS
_SHORTEST_PAUSE_NS = 2 * SECOND_NS
_SHARE_OF_WAIT = 0.7
_SHARE_OF_QUIET = 0.2
_ROUNDS_UNTIL_DOUBLED = 50
_MOST_THREADS = 16
_LONG_AGO = -(1 << 62)


class ThreadWait(NamedTuple):
    """Wait of a thread that goes on.

    Attributes:
        since_ns: when it began.
        thread: native id of the thread.
        is_certain: the thread is in the call or in its wait; else the call may only be in flight.
    """

    since_ns: int
    thread: int
    is_certain: bool = True


class StuckStacks:
    """Asks for stacks when this rank waits, and answers when others do.

    Args:
        folder: the run's folder; None for a recording in memory.
        keep: receives the events.
        waits: returns the waits that go on.
        num_calls: returns the number of calls that this process has issued.
    """

    def __init__(
        self,
        folder: Path | None,
        keep: Keep,
        waits: Callable[[], Iterable[ThreadWait]],
        num_calls: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._requests = None if folder is None else Requests(folder / STACKS_REQUEST)
        self._keep = keep
        self._waits = waits
        self._num_calls = num_calls
        self._calls_before = -1
        self._moved_ns = now()
        self._asked_ns = self._answered_ns = _LONG_AGO
        self._is_asked = False
        self._num_rounds = 0

    def poll(self, rank: int) -> None:
        """Ask or answer, if somebody waits; call it about once a second, before a flush."""
        at = now()
        num_calls = self._num_calls()
        if num_calls != self._calls_before:
            self._calls_before, self._moved_ns = num_calls, at
        if self._requests is not None and self._requests.new(rank):
            self._asked_ns, self._is_asked = at, True
        waits = [
            each if each.is_certain else each._replace(since_ns=max(each.since_ns, self._moved_ns))
            for each in self._waits()
        ]
        in_calls = {each.thread for each in waits if each.is_certain}
        if waits and self._is_long(at - min(each.since_ns for each in waits), at):
            self._ask()
            self._asked_ns = at
            self._answer(at, in_calls)
        elif self._is_asked:
            self._answer_if_quiet(at, in_calls)

    def _is_long(self, wait_ns: int, at: int) -> bool:
        """Return whether a wait calls for another round."""
        least = WAITING_NS << min(self._num_rounds // _ROUNDS_UNTIL_DOUBLED, 8)
        if wait_ns < least:
            return False
        since_ns = at - self._asked_ns
        return since_ns >= (wait_ns * _SHARE_OF_WAIT if since_ns < wait_ns else 0)

    def _ask(self) -> None:
        if self._folder is not None and self._requests is not None:
            with suppress(OutputError):  # the folder is full, or gone
                request_dumps(self._folder, None, STACKS_REQUEST)
            self._requests.forget_current()

    def _answer_if_quiet(self, at: int, in_calls: Collection[int]) -> None:
        quiet_ns = at - self._moved_ns
        if quiet_ns >= _QUIET_NS:
            pause_ns = max(_SHORTEST_PAUSE_NS, round(quiet_ns * _SHARE_OF_QUIET))
            if at - self._answered_ns >= pause_ns:
                self._answer(at, in_calls)
            self._is_asked = False
        elif self._moved_ns > self._asked_ns:  # a call was made since: the rank runs on
            self._is_asked = False

    def _answer(self, at: int, in_calls: Collection[int]) -> None:
        self._answered_ns, self._is_asked = at, False
        self._num_rounds += 1
        for event in stuck_events(at, in_calls):
            self._keep(event)


def stuck_events(at: int, in_calls: Collection[int] = ()) -> list[HostEvent]:
    """Return an event with the stack of each thread of interest, the main thread first.

    These are the main thread, threads that run the user's code, and threads in calls.

    Args:
        at: time of the events.
        in_calls: native ids of threads that are in a call.
    """
    rank, own, main = process_rank(), threading.get_ident(), threading.main_thread()
    known = {each.ident: each for each in threading.enumerate()}
    frames = sys._current_frames()
    found = []
    for ident in sorted(frames, key=lambda each: (each != main.ident, each)):
        thread, frame = known.get(ident), frames[ident]
        native_id = -1 if thread is None or thread.native_id is None else thread.native_id
        if ident == own or not (
            thread is main or native_id in in_calls or _is_in_users_code(frame)
        ):
            continue
        event = HostEvent(STUCK, at, rank, native_id, "" if thread is None else thread.name)
        event.stack = stack_of(frame)[:MOST_FRAMES]
        users = nearest_of_user(frame)
        if users is not None:
            event.code, event.line = code_and_line(users)
        found.append(event)
    return found[:_MOST_THREADS]


def _is_in_users_code(frame: FrameType | None) -> bool:
    while frame is not None and kind_of(frame) != USER:
        frame = frame.f_back
    return frame is not None
