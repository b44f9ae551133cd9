"""Count the collectives that each thread issues, whichever library issues them.

The counted operators belong to c10d, in which every collective of every DTensor ends, as seen
by commtrace's recorder. Elements and wire bytes are defined in docs/bytes.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from commtrace.recorder.events.groups import resolve
from commtrace.recorder.events.request import Request
from commtrace.recorder.events.signature import Signature
from commtrace.recorder.interception.interception import Interception
from commtrace.recorder.recorder import Recorder


@dataclass(slots=True)
class Sent:
    """Communication volume: calls, payload elements and wire bytes."""

    collectives: int = 0
    elements: int = 0
    wire_bytes: int = 0

    def add(self, other: Sent) -> None:
        """Add the counts of another instance."""
        self.collectives += other.collectives
        self.elements += other.elements
        self.wire_bytes += other.wire_bytes


class Counter(Recorder):
    """Recorder that only adds up the calls of each thread that is in `counting`."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: Any = (self,)  # a non-empty tuple makes the interception active
        self._here = threading.local()

    @contextmanager
    def counting(self) -> Iterator[Sent]:
        """Yield the counts of this thread's calls, updated while the body runs."""
        self._here.sent = sent = Sent()
        try:
            yield sent
        finally:
            self._here.sent = None

    def issue(
        self, native_op: str, signature: Signature, args: Sequence[Any], frame: Any, state: Any
    ) -> None:
        """Count a call; a functional collective is seen twice and counted once."""
        sent: Sent | None = getattr(self._here, "sent", None)
        if sent is not None and native_op.startswith("c10d::"):
            group = self.groups.of(resolve(args[signature.group]))
            request = Request(native_op, signature, group)
            request.read_arguments(args)
            num_elements = request.payload // request.dtype.itemsize
            sent.add(Sent(1, num_elements, request.wire_bytes()))


@contextmanager
def counter() -> Iterator[Counter]:
    """Yield a counter that sees every collective of the process while the body runs."""
    made = Counter()
    interception = Interception(made)
    interception.install()
    try:
        yield made
    finally:
        interception.uninstall()
