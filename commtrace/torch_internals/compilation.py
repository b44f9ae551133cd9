"""torch.compile: frames that Dynamo skips or has compiled, the trace, and compilations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._C._dynamo import eval_frame
from torch._guards import TracingContext

__all__ = ["TracingContext"]

_action = eval_frame._FrameAction


def skip_frame(code: CodeType, *, and_its_callees: bool) -> None:
    """Run a function uncompiled wherever it is called."""
    rest = _action.SKIP if and_its_callees else _action.DEFAULT
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(_action.SKIP, rest))


_WHY_AGAIN = "get_and_maybe_log_recompilation_reasons"


def _is_again(args: Any) -> bool:
    """Return whether a compilation, named `frame/number`, is not the first of its frame."""
    number = str(args.compile_id).rpartition("/")[2].partition("_")[0]
    return number.isdecimal() and int(number) > 0


class Observation:
    """Callbacks in Dynamo; `end` removes them."""

    def __init__(
        self,
        begins: Callable[[bool], None],
        again: Callable[[CodeType, list[str]], None],
        ends: Callable[[], None],
    ) -> None:
        self._handler: Any = sys.modules["torch._dynamo.callback"].callback_handler  # type: ignore[attr-defined]
        self._frames: Any = sys.modules["torch._dynamo.convert_frame"]
        self._begins = lambda args: begins(_is_again(args))
        self._ends = lambda args: ends()
        self.renew()
        self._original = original = getattr(self._frames, _WHY_AGAIN)

        def reasons_of(entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            reasons = original(entries, frame, *args, **kwargs)
            again(frame.f_code, [str(each) for each in reasons])
            return reasons

        self._ours = reasons_of
        setattr(self._frames, _WHY_AGAIN, reasons_of)

    def renew(self) -> None:
        """Add the callbacks again that a reset of Dynamo has removed."""
        if self._begins not in self._handler.start_callbacks:
            self._handler.register_start_callback(self._begins)
        if self._ends not in self._handler.end_callbacks:
            self._handler.register_end_callback(self._ends)

    def end(self) -> None:
        """Remove the callbacks, unless someone has removed them before."""
        if self._begins in self._handler.start_callbacks:
            self._handler.remove_start_callback(self._begins)
        if self._ends in self._handler.end_callbacks:
            self._handler.remove_end_callback(self._ends)
        if getattr(self._frames, _WHY_AGAIN) is self._ours:
            setattr(self._frames, _WHY_AGAIN, self._original)


def observe_compilations(
    begins: Callable[[bool], None],
    again: Callable[[CodeType, list[str]], None],
    ends: Callable[[], None],
) -> Observation | None:
    """Call functions when Dynamo compiles on the current thread; None before it is loaded.

    Args:
        begins: a compilation begins; takes whether that code was compiled before.
        again: code is about to be compiled again, for reasons: the guards that failed.
        ends: it has ended.
    """
    modules = [sys.modules.get(f"torch._dynamo.{name}") for name in ("callback", "convert_frame")]
    # Loaded in full, not while another thread is about to.
    if not all(map(hasattr, modules, ("callback_handler", _WHY_AGAIN))):
        return None
    return Observation(begins, again, ends)


def has_compiled() -> bool:
    """Return whether dynamo has compiled a function of the program."""
    loaded = sys.modules.get("torch._dynamo.utils")
    return loaded is not None and bool(loaded.counters["frames"])
