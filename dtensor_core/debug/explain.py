"""`explain`: the communication of a function and its reasons, without running the function.

The function runs on fake tensors. Shapes, dtypes and layouts are as in a real run, but nothing is
computed or sent. Changes to gradients are undone; other state that the function stores (an
optimizer's, for instance) would be fake.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from dtensor_core import observe
from dtensor_core.errors import DTensorError
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.autograd import current_graph_task_id
from dtensor_core.torch_internals.dispatcher import TorchDispatchMode
from dtensor_core.torch_internals.groups import FakeWork
from dtensor_core.torch_internals.tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from dtensor_core.torch_internals.trees import tree_leaves, tree_map_only

_COMMUNICATION = ("c10d", "_c10d_functional")
_NO_COMMUNICATION = ("wait_tensor", "_wrap_tensor_autograd", "check_for_nan")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class ExplainError(DTensorError, RuntimeError):
    """A function can't be traced without its data."""


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """An operator on DTensors, or an explicit redistribution or collective.

    Attributes:
        operator: The name of the operator.
        phase: "forward" or "backward".
        arguments: The layouts of the arguments, as text: `f32[8,16] dp:S(0) tp:P(sum)`.
        results: The layouts of the results, as text.
        sends: The collectives that it needs, each with its argument and the candidates considered.
    """

    operator: str
    phase: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sends: tuple[observe.Reason, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """The payload of this rank's collectives, in bytes."""
        return sum(send.payload_bytes for send in self.sends)

    @property
    def seconds(self) -> float:
        """The estimated time of its collectives."""
        return sum(send.seconds for send in self.sends)

    def lines(self) -> Iterator[str]:
        """Yield the operator, its collectives, and the candidates of each argument that moves."""
        results = f" -> {', '.join(self.results)}" if self.results else ""
        yield f"{self.operator}  {', '.join(self.arguments)}{results}"
        explained: set[str] = set()
        for send in self.sends:
            yield f"    {self._journey(send)}{_collective_text(send)}"
            if send.candidates and send.operator not in explained:
                explained.add(send.operator)
                ways = "; ".join(f"{way} in {_time(cost)}" for way, cost in send.candidates)
                yield f"      considered: {ways}"

    def _journey(self, send: observe.Reason) -> str:
        """Return the purpose of a collective, if the line above does not contain it."""
        if (send.source,) == self.arguments and (send.target,) == self.results:
            return ""
        return f"{send.argument}: {send.source} -> {send.target} by " if send.source else ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The operators of a function on DTensors, in order; `str()` is a text for the terminal.

    Bytes are this rank's; times are estimates of the planner.
    """

    rows: tuple[PlannedOperator, ...]

    def __iter__(self) -> Iterator[PlannedOperator]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> PlannedOperator:
        return self.rows[number]

    @property
    def communicating(self) -> Explanation:
        """The explanation reduced to operators that communicate."""
        return Explanation(tuple(row for row in self.rows if row.sends))

    @property
    def total_bytes(self) -> int:
        """The payload of this rank's collectives, in bytes."""
        return sum(row.payload_bytes for row in self.rows)

    @property
    def total_seconds(self) -> float:
        """The estimated time of all collectives, run in sequence."""
        return sum(row.seconds for row in self.rows)

    def counts(self) -> Counter[str]:
        """Return the number of collectives of each kind."""
        return Counter(send.step for row in self.rows for send in row.sends)

    def table(self) -> str:
        """Format all rows as text, after a summary."""
        counts = ", ".join(f"{number} {kind}" for kind, number in self.counts().items())
        summary = f"operators: {len(self.rows)}, communicating: {len(self.communicating.rows)}"
        if counts:
            summary += f" ({counts}; {_size(self.total_bytes)}, about {_time(self.total_seconds)})"
        lines = [summary]
        phase = ""
        for row in self.rows:
            if row.phase != phase:
                phase = row.phase
                lines.append(f"{phase}:")
            lines += [f"  {line}" for line in row.lines()]
        return "\n".join(lines)

    __str__ = table


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Explain the communication of `fn(*args, **kwargs)`, operator by operator.

    Nothing is computed, sent or written. A backward pass that `fn` runs is included. The mesh of
    the DTensors has to exist; a fake process group is sufficient.

    Raises:
        ExplainError: `fn` needs the data of a tensor to continue.
    """
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    mode = _Explaining(
        lambda real: real if isinstance(real, FakeTensor) else fakes.from_tensor(real)
    )
    try:
        with _generators_kept(), fakes, observe.listening(mode.hear), mode:
            fn(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ExplainError(
            f"explain {getattr(fn, '__name__', fn)}",
            found=f"it runs {error.args[0] if error.args else error}",
            why="the result depends on the tensor's data, and explain computes nothing",
            hint="explain the code before and after it separately",
        ) from error
    finally:
        mode.restore_gradients()
    return Explanation(tuple(mode.rows))


class _Explaining(TorchDispatchMode):
    """Records operators on DTensors, and the reasons announced while each of them runs.

    Local operators get fake tensors, so that none of them writes to a real tensor.
    """

    def __init__(self, as_fake: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._as_fake = as_fake
        self.rows: list[PlannedOperator] = []
        self._thread = threading.get_ident()
        self._inside: list[list[observe.Reason]] = []
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._remember_gradients((args, kwargs))
        if any(issubclass(cls, DTensor) for cls in types):
            return self._run(func, types, args, kwargs)
        name = func._schema.name.partition("::")[2]
        is_communication = func.namespace in _COMMUNICATION and name not in _NO_COMMUNICATION
        if is_communication and observe.current() is None:
            self._note_collective(func, name, args)
        if is_communication and func.namespace == "c10d":
            return _as_if_done(func, args)
        args, kwargs = tree_map_only(torch.Tensor, self._as_fake, (args, kwargs))
        return func(*args, **kwargs)

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on DTensors; operators that it runs itself are recorded as part of it."""
        arguments = _layouts((args, kwargs))
        self._inside.append([])
        try:
            with self:
                result = DTensor.__torch_dispatch__(func, types, args, kwargs)  # pyright: ignore
        finally:
            heard = self._inside.pop()
        if self._inside:
            self._inside[-1].extend(heard)
        else:
            results = _layouts(result)
            self.rows.append(PlannedOperator(str(func), _phase(), arguments, results, tuple(heard)))
        return result

    def hear(self, reason: observe.Reason) -> None:
        """Record a collective of the operator in progress or of an explicit redistribution."""
        here = threading.current_thread()
        if here.ident != self._thread and not isinstance(here, threading._DummyThread):
            return
        if self._inside:
            self._inside[-1].append(reason)
            return
        last = self.rows[-1] if self.rows else None
        if last is not None and _continues(last, reason):
            self.rows[-1] = replace(last, sends=(*last.sends, reason))
        else:
            row = PlannedOperator(
                reason.operator, _phase(), (reason.source,), (reason.target,), (reason,)
            )
            self.rows.append(row)

    def _note_collective(self, func: Any, name: str, args: Sequence[Any]) -> None:
        tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
        texts = tuple(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in tensors)
        size = max((each.numel() * each.element_size() for each in tensors), default=0)
        reason = observe.Reason(str(func), "", "", "", name.rstrip("_"), "", size)
        if self._inside:
            self._inside[-1].append(reason)
        else:
            self.rows.append(PlannedOperator(str(func), _phase(), texts, (), (reason,)))

    def _remember_gradients(self, given: Any) -> None:
        for each in tree_leaves(given):
            if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad:
                self._gradients.setdefault(id(each), (each, each.grad))

    def restore_gradients(self) -> None:
        """Restore the original gradient of every leaf."""
        for leaf, gradient in self._gradients.values():
            leaf.grad = gradient


def _generators_kept() -> AbstractContextManager[None]:
    """Restore the state of random generators after the body."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    return torch.random.fork_rng(devices)


def _phase() -> str:
    return "backward" if current_graph_task_id() >= 0 else "forward"


def _continues(row: PlannedOperator, reason: observe.Reason) -> bool:
    """True if a collective is a further step of the redistribution in a row."""
    first = row.sends[0] if row.sends else None
    return (
        first is not None
        and (first.operator, first.source, first.target)
        == (reason.operator, reason.source, reason.target)
        and all((send.step, send.axis) != (reason.step, reason.axis) for send in row.sends)
    )


def _layouts(given: Any) -> tuple[str, ...]:
    return tuple(each._spec.text for each in tree_leaves(given) if isinstance(each, DTensor))


def _as_if_done(func: Any, args: Sequence[Any]) -> Any:
    """Return what an operator of c10d would, without sending anything."""
    returned = [
        FakeWork().boxed() if "Work" in str(each.type) else args[0] for each in func._schema.returns
    ]
    return returned[0] if len(returned) == 1 else tuple(returned)


def _collective_text(send: observe.Reason) -> str:
    """Format a collective: kind, axis, bytes and time, as far as they are known."""
    text = send.step + (f" on {send.axis}" if send.axis else "")
    text += f", {_size(send.payload_bytes)}"
    text += f", about {_time(send.seconds)}" if send.seconds else ""
    return f"{text} ({send.note})" if send.note else text


def _size(num_bytes: int) -> str:
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"


def _time(seconds: float) -> str:
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
