"""Errors inside the recorder: the first error and their number.

They never reach the recorded program and are reported when the recording ends. Tracebacks are
dropped, since they would keep the program's tensors alive.
"""

from __future__ import annotations


class Failures:
    """First error and number of errors."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def append(self, error: BaseException) -> None:
        """Add an error."""
        self._num += 1
        if self.first is None:
            self.first = error.with_traceback(None)

    def clear(self) -> None:
        """Forget all errors."""
        self.first = None
        self._num = 0

    def extend(self, others: Failures) -> None:
        """Add all errors of `others`."""
        self._num += len(others)
        self.first = self.first or others.first
