"""Decomposition of operators without a rule, where torch's decomposition communicates less.

The decomposition is traced on meta tensors of the global shapes, and each operator in it is decided
as in a real call. Nothing is executed, and all ranks reach the same result. Decompositions that
write, draw random numbers, read data, or change the result's metadata are excluded. Called by
`make_entry` for a call that would gather full tensors for lack of a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from dtensor_core.dispatch.arguments import converted, flattened
from dtensor_core.dispatch.metadata.corrections import as_meta
from dtensor_core.mesh import DeviceMesh
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.table import row_of
from dtensor_core.placement import Replicate
from dtensor_core.propagate import Decision, decide
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import (
    COMPOSITE_EXPLICIT,
    COMPOSITE_IMPLICIT,
    OpOverload,
    TorchDispatchMode,
    decompositions,
)

Function = Callable[..., Any]

_UNPLANNABLE = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


def derivation(call: Call, full: Decision) -> Function | None:
    """Return the function to run on DTensors instead of the gathering decision `full`.

    Returns None if no decomposition communicates less.
    """
    if not _only_computes(call.op):
        return None
    limit = _seconds(full)
    for function in _decompositions(call.op):
        seconds = _Followed(call.specs[0].mesh).seconds(function, call)
        if seconds is not None and seconds < limit:
            return function
    return None


def _only_computes(op: OpOverload) -> bool:
    """True for operators that don't write, alias, draw random numbers or read data."""
    if op._schema.is_mutable or any(tag in op.tags for tag in _UNPLANNABLE):
        return False
    return all(result.alias_info is None for result in op._schema.returns)


def _decompositions(op: OpOverload) -> Iterator[Function]:
    """Yield torch's decompositions of an operator: from its table, or a kernel made of operators.

    Kernels of other libraries are excluded, as they may access the memory of their arguments.
    """
    if (decomposition := decompositions().get(op)) is not None:
        yield decomposition
    if op.namespace == "aten" and op.has_kernel_for_dispatch_key(COMPOSITE_EXPLICIT):
        yield partial(op._op_dk, COMPOSITE_EXPLICIT)


def _seconds(decision: Decision) -> float:
    """Return the estimated communication time of a decision."""
    moves = sum(plan.seconds for plan in decision.plans)
    return moves + sum(each.seconds(decision.inputs) for each in decision.exchanges)


class _Unplannable(Exception):
    """A decomposition contains an operator that can't be traced."""


class _Followed(TorchDispatchMode):
    """Mode that decides each operator as it runs.

    A tensor of unknown origin counts as replicated.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh
        # Holds the tensors too, so that no id is reused for another one meanwhile.
        self._known: dict[int, tuple[torch.Tensor, Spec]] = {}
        self._sent = 0.0

    def seconds(self, function: Function, call: Call) -> float | None:
        """Return the estimated communication time of `function` in place of a call, or None.

        None means that the function cannot be traced, or does not return what the call does.
        """
        args, kwargs = converted(Spec, self._tensor, call.args, call.kwargs)
        try:
            with self:
                result = function(*args, **kwargs)
        except Exception:  # any failure means that there is no derivation
            return None
        results = [each for each in flattened([result], {}) if isinstance(each, torch.Tensor)]
        found = [(each.shape, each.dtype) for each in results]
        is_alike = found == [(each.shape, each.dtype) for each in call.outputs]
        is_made_of_arguments = all(id(each) in self._known for each in results)
        return self._sent if is_alike and is_made_of_arguments else None

    def _tensor(self, spec: Spec) -> torch.Tensor:
        made = as_meta(spec)
        self._known[id(made)] = made, spec
        return made

    def _spec(self, tensor: torch.Tensor) -> Spec:
        if id(tensor) in self._known:
            return self._known[id(tensor)][1]
        return Spec(self._mesh, (Replicate(),) * self._mesh.ndim, _meta(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if row_of(func) is None and func.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT):
            # A mode is not in force within its own handler.
            with self:
                return func.decompose(*args, **kwargs)
        if any(tag in func.tags for tag in _UNPLANNABLE):
            raise _Unplannable(str(func))
        if not any(id(each) in self._known for each in flattened(args, kwargs)):
            return func(*args, **kwargs)
        # Tensors that the decomposition made itself are not followed, and may be written.
        if func._schema.is_mutable:
            raise _Unplannable(str(func))
        result = func(*args, **kwargs)
        made = [each for each in flattened([result], {}) if isinstance(each, torch.Tensor)]
        spec_args, spec_kwargs = converted(torch.Tensor, self._spec, args, kwargs)
        specs = tuple(e for e in flattened(spec_args, spec_kwargs) if isinstance(e, Spec))
        call = Call(func, spec_args, spec_kwargs, specs, tuple(map(_meta, made)))
        decision = decide(call, ())
        instead = derivation(call, decision) if decision.lacks_rule else None
        if instead is not None:
            with self:
                return instead(*args, **kwargs)
        self._sent += _seconds(decision)
        for tensor, spec in zip(made, decision.outputs, strict=True):
            self._known[id(tensor)] = tensor, spec
        return result


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
