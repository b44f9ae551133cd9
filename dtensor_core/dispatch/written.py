"""Writing where a tensor does not lie: what is written is brought to where it belongs.

An operator that can't write into a tensor as it lies writes into a redistributed copy, and
`bring_back` takes this rank's part of it: a shard, or an addend of a pending reduction, so that the
tensor keeps its layout and whatever shares its elements sees the same value. A view that needs
communication is a copy too, and remembers of what; after an operator has written to it
`write_through` scatters it into that tensor. Called by `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from dtensor_core.errors import RuleError, four_parts
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import Plan, plan_between
from dtensor_core.spec import Spec, TensorMeta

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Back:
    """The way home of what is written to the argument of this number."""

    whose: int
    spec: Spec
    plan: Plan
    cause: Cause


@dataclass(frozen=True, slots=True)
class Out:
    """Where a result goes: the tensor `out[index]` of this name, by a plan from its spec."""

    name: str
    index: int | None
    spec: Spec
    plan: Plan
    cause: Cause

    def of(self, kwargs: Mapping[str, Any]) -> Any:
        """The tensor that the caller gave."""
        return kwargs[self.name] if self.index is None else kwargs[self.name][self.index]


@dataclass(frozen=True, slots=True)
class Copied:
    """Result `number` of the view `op` of `base`, held as a copy: `local`, laid out as `spec`."""

    base: Any
    op: OpOverload
    number: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    local: torch.Tensor
    spec: Spec


def check_given(
    op: OpOverload, backs: Sequence[Back], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise RuleError if the reduction of addends that the user gave would be finished in place."""
    if not backs:
        return
    numbered = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    for back in backs:
        target = numbered[back.whose]
        if getattr(target, "_given_addends", False):
            raise RuleError(
                four_parts(
                    asked=f"{op} to write its result in place to {target._spec.text}",  # pyright: ignore
                    found="addends that were given to DTensor.from_local",
                    why="in-place operations that require placement changes are not supported: the "
                    "operator needs the reduced value, and these addends would be gone",
                    hint="redistribute to Replicate() or Shard(dim) first, or use the operator's "
                    "out-of-place form",
                )
            )


def bring_back(backs: Sequence[Back], given: Any, local: Any) -> None:
    """Copy what was written in another layout into the tensors that it belongs to.

    `given` and `local` are the arguments (positional, by name) of the call and of what was run.
    """
    leaves = zip(tree_leaves(given), tree_leaves(local), strict=True)
    numbered = [pair for pair in leaves if isinstance(pair[0], torch.Tensor)]
    for back in backs:
        home, value = numbered[back.whose]
        home._local_tensor.copy_(execute(value, back.spec, back.plan, back.cause))


def without_out(op: OpOverload, names: Collection[str]) -> OpOverload:
    """The operator that returns what this one writes to the arguments of these names."""
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.partition("::")[2])
    wanted = [str(a.type) for a in op._schema.arguments if a.name not in names]
    for name in packet.overloads():
        found = getattr(packet, name)
        if found is not op and [str(a.type) for a in found._schema.arguments] == wanted:
            return found
    raise RuleError(f"{op} has no form without out=, which DTensors need")


def outs_of(
    op: OpOverload,
    results: Sequence[Spec | None] | None,
    kwargs: Mapping[str, Any],
    names: Collection[str],
) -> tuple[Out, ...]:
    """Where the results go, in their order.

    Raises RuleError where a result does not fit its tensor, or data decides its shape.
    """
    given = [argument.name for argument in op._schema.arguments if argument.name in names]
    places: list[tuple[str, int | None]] = []
    for name in given:
        several = isinstance(kwargs[name], (list, tuple))
        places += [(name, n) for n in range(len(kwargs[name]))] if several else [(name, None)]
    specs = [spec for spec in results or () if spec is not None]
    if len(specs) != len(places):
        raise RuleError(f"{op} has results that its out= can't be known to fit; call it without")
    outs: list[Out] = []
    for (name, index), result in zip(places, specs, strict=True):
        tensor = kwargs[name] if index is None else kwargs[name][index]
        goal = getattr(tensor, "_spec", None)
        if goal is not None and goal.shape != result.shape:
            raise does_not_fit(op, goal, result.shape)
        target = result.replicated() if goal is None else result.with_placements(goal.placements)
        outs.append(Out(name, index, result, plan_between(result, target), Cause(str(op), name)))
    return tuple(outs)


def does_not_fit(op: OpOverload, spec: Spec, shape: Sequence[int]) -> RuleError:
    """The error of writing a result of another shape."""
    return RuleError(
        four_parts(
            asked=f"{op} to change the shape of {spec.text} in place",
            found=f"a result of shape {tuple(shape)}",
            why="what is written keeps its shape",
            hint="use the operator's out-of-place form",
        )
    )


def fill_outs(outs: Sequence[Out], op: OpOverload, results: Any, kwargs: Mapping[str, Any]) -> Any:
    """The tensors of `out=`, with the local results brought to their layouts.

    A plain one is empty, made by torch for a result that nobody asked for: it is resized.
    """
    several = results if isinstance(results, (list, tuple)) else [results]
    made = [value for value in several if isinstance(value, torch.Tensor)]
    for out, result in zip(outs, made, strict=True):
        target, value = out.of(kwargs), execute(result, out.spec, out.plan, out.cause)
        if not hasattr(target, "_spec"):
            target.resize_(value.shape).copy_(value)
            continue
        target._local_tensor.copy_(value)
        if target._copied is not None:
            write_through(target._copied, op, (target,))
    found = [out.of(kwargs) for out in outs]
    return None if not op._schema.returns else found[0] if len(found) == 1 else tuple(found)


def check_writable(copied: Copied) -> None:
    """Raise RuleError if what is written to the copy could not be brought to its tensor."""
    if _name(copied) not in _SCATTERS:
        raise RuleError(
            four_parts(
                asked="to write to a view of a DTensor",
                found=f"a copy, {copied.spec.text}: {copied.op} needed communication",
                why="what is written would not reach the tensor that the view is of",
                hint="redistribute that tensor first so that the view needs no communication, or "
                "use the operator's out-of-place form",
            )
        )


def write_through(copied: Copied, op: OpOverload, args: Sequence[Any]) -> None:
    """Write the copy, which `op` has written, into the tensor that it should have been a view of.

    What overwrites all of the copy is written as it is given: the copy need not be gathered. A view
    of the copy shares its elements, and overwrites only some.
    """
    make = _OVERWRITING.get(op) if args[0]._local_tensor is copied.local else None
    part = make(copied, args) if make else None
    if part is None:
        part = type(copied.base)(copied.local, copied.spec)
    aten.copy_.default(copied.base, _SCATTERS[_name(copied)](copied, part))


def _constant(copied: Copied, args: Sequence[Any]) -> Any:
    """What `fill_` writes, whole; None if it is a DTensor."""
    value = args[1] if len(args) > 1 else 0
    if hasattr(value, "_spec"):
        return None
    shape, dtype = copied.spec.shape, copied.spec.dtype
    return _whole(copied, copied.local.new_full((), 0, dtype=dtype).fill_(value).expand(shape))


def _source(copied: Copied, args: Sequence[Any]) -> Any:
    """What `copy_` writes, in the layout of its source."""
    shape, dtype = list(copied.spec.shape), copied.spec.dtype
    if hasattr(args[1], "_spec"):
        return aten._to_copy.default(aten.expand.default(args[1], shape), dtype=dtype)
    return _whole(copied, args[1].to(dtype).expand(shape))


def _whole(copied: Copied, value: torch.Tensor) -> Any:
    meta = TensorMeta(value.shape, value.stride(), value.dtype)
    return type(copied.base)(
        value, Spec(copied.spec.mesh, copied.spec.placements, meta).replicated()
    )


_OVERWRITING: dict[Any, Callable[[Copied, Sequence[Any]], Any]] = {
    aten.zero_.default: _constant,
    aten.fill_.Scalar: _constant,
    aten.fill_.Tensor: _constant,
    aten.copy_.default: _source,
}


def _name(copied: Copied) -> str:
    return copied.op._schema.name.removeprefix("aten::")


def _scattered(operator: Callable[..., Any]) -> Callable[[Copied, Any], Any]:
    """The inverse that torch has: it takes the view's own arguments."""
    return lambda copied, part: operator(copied.base, part, *copied.args, **copied.kwargs)


def _reshaped(copied: Copied, part: Any) -> Any:
    return aten.reshape.default(part, list(copied.base.shape))


def _transposed(copied: Copied, part: Any) -> Any:
    return aten.transpose.int(part, *copied.args)


def _permuted(copied: Copied, part: Any) -> Any:
    order = [dim % part.ndim for dim in copied.args[0]]
    return aten.permute.default(part, sorted(range(part.ndim), key=order.__getitem__))


def _split(copied: Copied, part: Any) -> Any:
    """The piece of this number, of equal pieces or of those whose sizes are given."""
    sizes, dim = copied.args[0], (*copied.args[1:], copied.kwargs.get("dim", 0))[0]
    start = copied.number * sizes if isinstance(sizes, int) else sum(sizes[: copied.number])
    return aten.slice_scatter.default(copied.base, part, dim, start, start + part.shape[dim])


def _unbound(copied: Copied, part: Any) -> Any:
    dim = (*copied.args, copied.kwargs.get("dim", 0))[0]
    return aten.select_scatter.default(copied.base, part, dim, copied.number)


_SCATTERS: dict[str, Callable[[Copied, Any], Any]] = {
    "slice": _scattered(aten.slice_scatter.default),
    "select": _scattered(aten.select_scatter.default),
    "diagonal": _scattered(aten.diagonal_scatter.default),
    "as_strided": _scattered(aten.as_strided_scatter.default),
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _unbound,
    "transpose": _transposed,
    "permute": _permuted,
    "t": lambda copied, part: aten.t.default(part),
    **dict.fromkeys(("view", "_unsafe_view", "unsqueeze", "squeeze", "_reshape_alias"), _reshaped),
}
