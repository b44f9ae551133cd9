"""Words for the end of a process, by its exit code as a shell reports it: 128 + n for signal n."""

from __future__ import annotations

import signal

SIGNAL_EXIT_CODE = 128

CRASHED = "crashed in native code"
_CRASHED = CRASHED + ": {}"
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals of crashes, which no process sends to end another; SIGABRT may follow another's end."""
_WORDS = {
    signal.SIGKILL: "killed by {}, possibly for lack of memory",
    signal.SIGTERM: "asked to end by {}",
    signal.SIGINT: "interrupted by {}",
    signal.SIGHUP: "ended by {}: its terminal was closed",
    **dict.fromkeys((*CRASHES, signal.SIGABRT), _CRASHED),
}


def text_of_exit(exit_code: int) -> str:
    """Describe how a process ended, in words that follow its name.

    >>> text_of_exit(3), text_of_exit(128 + 9)
    ('exit code 3', 'killed by signal 9 (SIGKILL), possibly for lack of memory')
    """
    try:
        number = signal.Signals(exit_code - SIGNAL_EXIT_CODE)
    except ValueError:  # chosen by the program, or a signal without a name
        return f"exit code {exit_code}"
    return _WORDS.get(number, "ended by {}").format(f"signal {number.value} ({number.name})")
