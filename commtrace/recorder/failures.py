"""What went wrong while recording: the first failure, and how many there were.

Nothing of it reaches the recorded program; it is told when the recording ends. Tracebacks are not
kept, for they would keep the program's tensors.
"""

from __future__ import annotations


class Failures:
    """The first of many, and their number."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def append(self, error: BaseException) -> None:
        """Take note of one more."""
        self._num += 1
        if self.first is None:
            self.first = error.with_traceback(None)

    def extend(self, others: Failures) -> None:
        """Take note of all that others have."""
        self._num += len(others)
        self.first = self.first or others.first
