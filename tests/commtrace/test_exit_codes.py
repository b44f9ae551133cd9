"""Exit codes in words: for signals, they say what may have sent them."""

from __future__ import annotations

import signal

import pytest

from commtrace.exit_codes import text_of_exit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit code 3"),
        (255, "exit code 255"),  # `sys.exit(-1)`
        (128 + 9, "killed by signal 9 (SIGKILL), possibly for lack of memory"),
        (128 + 15, "asked to end by signal 15 (SIGTERM)"),
        (128 + 2, "interrupted by signal 2 (SIGINT)"),
        (128 + signal.SIGSEGV, "crashed in native code: signal 11 (SIGSEGV)"),
        (128 + signal.SIGABRT, "crashed in native code: signal 6 (SIGABRT)"),
        (128 + signal.SIGALRM, "ended by signal 14 (SIGALRM)"),
    ],
)
def test_an_end_in_words(code: int, text: str) -> None:
    assert text_of_exit(code) == text
