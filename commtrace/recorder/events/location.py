"""Location of a call in the program, and the attribution that a library's frames give it.

The parts that cost time, such as the line of an instruction and the names of parameters, are
computed when the call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from commtrace.recorder.caller_chain import (
    INSTALLED_IN,
    CallerChain,
    CodePlace,
    function_of,
    line_of,
    text_of_place,
)
from commtrace.recorder.module_place import ModuleCall, Place
from commtrace.recorder.thread_state import CallStack, PipelinePart
from commtrace.schema import PHASES

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = PHASES

_UNKNOWN = -1


def _no_names() -> Sequence[str]:
    return ()


def no_note() -> str:
    """Return that there is nothing else to say."""
    return ""


@dataclass(frozen=True, slots=True)
class Redistribution:
    """A redistribution of torch's DTensor; `operator` is `redistribute` if the user's own."""

    operator: str
    argument: str
    source: str
    target: str
    candidates: tuple[tuple[str, float], ...] = ()  # torch does not report the alternatives
    payload_bytes: int = -1  # nor the expected bytes

    @property
    def sentence(self) -> str:
        """The reason as a sentence."""
        needs = f"needs {self.argument} " if self.argument else ""
        return f"{self.operator} {needs}{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A pipeline transfer, for the next call of `module` if `is_ahead`, else the latest."""

    module: nn.Module
    part: PipelinePart
    is_ahead: bool


@dataclass(frozen=True, slots=True)
class Attribution:
    """Payload of a call and the part of the model it belongs to.

    Attributes:
        carries: objects, parameters, gradients, activations, flags (of the parameters that a pass
            has used), or `HARNESS` for the set-up and tear-down of a test.
        modules: the modules it belongs to, if known.
        names: returns the parameters' names.
        reason: returns why torch's DTensor redistributes, if it does.
        is_reducers: DistributedDataParallel's reducer waits for the call, in C++.
        are_relative: `names` are relative to the module that the call is attributed to.
        stage: the pipeline stage, for a pipeline transfer.
        note: returns what else the library says.
    """

    carries: str
    modules: tuple[nn.Module, ...] = ()
    names: Callable[[], Sequence[str]] = _no_names
    reason: Callable[[], Redistribution] | None = None
    is_reducers: bool = False
    are_relative: bool = False
    stage: Transfer | None = None
    note: Callable[[], str] = no_note

    def key(self) -> tuple[Any, ...]:
        """Return the attribution's values as they are written."""
        reason = None if self.reason is None else self.reason()
        return self.carries, tuple(self.names()), reason, self.note()


class Location(NamedTuple):
    """Location of a call.

    Attributes:
        phase: forward, backward, recompute, optimizer or other.
        module_call: the module call that the call belongs to.
        code: the user's code; None if the stack has none.
        instruction: offset of the call's instruction in `code`.
        attribution: the attribution found on the stack.
        callers: the user's frames around `code`; None if there are none.
        via: the nearest place in an installed package between `code` and the call, if any.
    """

    phase: str
    module_call: ModuleCall | None
    code: CodeType | None
    instruction: int
    attribution: Attribution | None
    callers: CallerChain | None = None
    via: CodePlace | None = None

    @property
    def place(self) -> Place | None:
        """The module that the call belongs to."""
        return self.module_call[0] if self.module_call else None

    @property
    def file(self) -> str:
        """The user's source file."""
        return self.code.co_filename if self.code else ""

    @property
    def line(self) -> int:
        """Line of the instruction; computed late, since a frame's line is costly."""
        return _UNKNOWN if self.code is None else line_of(self.code, self.instruction)

    @property
    def function(self) -> str:
        """The user's function, even if torch.compile resumes it after a graph break."""
        return function_of(self.code) if self.code else ""

    @property
    def via_text(self) -> str:
        """The place in a package, `package/file.py:line function`; empty if there is none."""
        text = text_of_place(self.via) if self.via else ""
        for folder in INSTALLED_IN:
            text = text.rpartition(folder)[2]
        return text

    @property
    def parameter_names(self) -> Sequence[str]:
        """Names of the parameters that the call carries."""
        attribution, place = self.attribution, self.place
        if attribution is None:
            return ()
        names = attribution.names()
        if attribution.are_relative and place is not None and place.plain:
            return [f"{place.plain}.{name}" for name in names]
        return names


def text_of_stack(stack: CallStack) -> str:
    """Format a stack as lines `file:line function`, innermost last."""
    return "\n".join(f"{code.co_filename}:{line} {code.co_name}" for code, line in reversed(stack))
