"""Ends of the iterators of `torch.utils.data.DataLoader`, and long waits for their batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from commtrace.recorder.host_events.exceptions import Exceptions
from commtrace.recorder.host_events.note import Keep, note_here
from commtrace.recorder.host_events.ongoing import LONG_NS, Ongoing
from commtrace.recorder.replaced import Replaced
from commtrace.schema import DATA_END, DATA_WAIT
from commtrace.torch_internals.data_loaders import loader_iterator_class, num_batches


class DataLoading:
    """Source of what data loaders do, once the program has loaded them."""

    def __init__(self, ongoing: Ongoing, keep: Keep, exceptions: Exceptions) -> None:
        self._ongoing = ongoing
        self._keep = keep
        self._exceptions = exceptions
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace the iterators' `__next__`, if data loaders are loaded."""
        owner = None if self._replaced else loader_iterator_class()
        if owner is not None:
            self._replaced.replace(owner, "__next__", self._observed)

    def uninstall(self) -> None:
        """Restore it, unless someone has replaced it again since."""
        self._replaced.restore()

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def observed_next(iterator: Any) -> Any:
            wait = note_here(DATA_WAIT)
            self._ongoing.begin(wait)
            try:
                return original(iterator)
            except StopIteration:
                text = f"the data loader had no batch after {num_batches(iterator)}"
                self._keep(note_here(DATA_END, text))
                raise
            except BaseException as error:
                self._exceptions.passed(error)
                raise
            finally:
                self._ongoing.end(wait, LONG_NS)

        return observed_next
