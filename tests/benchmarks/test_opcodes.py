"""The count covers the call's own instructions, and repeats exactly."""

from __future__ import annotations

import sys
import threading

from benchmarks.opcodes import opcodes_of


def _loop(times: int) -> None:
    for _ in range(times):
        pass


def test_a_longer_loop_executes_more_instructions() -> None:
    ten, twenty, thirty = (opcodes_of(lambda n=n: _loop(n)) for n in (10, 20, 30))
    assert 0 < ten < twenty
    assert twenty - ten == thirty - twenty


def test_a_count_repeats() -> None:
    assert opcodes_of(lambda: _loop(7)) == opcodes_of(lambda: _loop(7))


def test_other_threads_are_not_counted() -> None:
    alone, is_over = opcodes_of(lambda: _loop(1000)), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            _loop(100)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert opcodes_of(lambda: _loop(1000)) == alone
    finally:
        is_over.set()
        thread.join()


def test_the_tracer_of_before_is_in_place_again() -> None:
    before = sys.gettrace()
    opcodes_of(lambda: _loop(1))
    assert sys.gettrace() is before
