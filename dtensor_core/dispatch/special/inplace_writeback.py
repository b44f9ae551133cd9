"""Write-back: a result written in another layout is brought to the tensor it belongs to.

An operator that can't write into a tensor in its layout writes into a redistributed copy.
`bring_back` then takes this rank's part of the copy: a shard, or the partial value of a pending
reduction. The tensor keeps its layout, and tensors that share its elements see the same value.
Called by `dispatch`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs
from dtensor_core.dispatch.entry import Back, Out
from dtensor_core.dispatch.special.materialized_views import check_writable, write_through
from dtensor_core.errors import RuleError
from dtensor_core.placement import Partial, norm_exponent
from dtensor_core.redistribute.execute import Origin, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload
from dtensor_core.torch_internals.trees import tree_leaves, tree_map_only
from dtensor_core.tracing import no_modes


def check_given(op: OpOverload, backs: Sequence[Back], args: Args, kwargs: Kwargs) -> None:
    """Raise RuleError if the write would replace the user's partial sums by a reduced value.

    Also if it may write negative values to pending norms, which are not reduced yet.
    """
    if not backs:
        return
    numbered = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    for back in backs:
        target = numbered[back.whose]
        if _is_norm(target._spec):  # pyright: ignore
            _check_sign(op, target._spec, args, kwargs)  # pyright: ignore
        if getattr(target, "_given_partial_sums", False):
            raise RuleError(
                f"{op} to write its result in place to {target._spec.text}",  # pyright: ignore
                found="partial sums that were passed to DTensor.from_local",
                why="in-place operations that require placement changes are not supported: "
                "the operator needs the reduced value, and the partial sums would be lost",
                hint="redistribute to Replicate() or Shard(dim) first, or use the operator's "
                "out-of-place form",
            )


# Operators whose results are not negative where neither their numbers nor their tensors are. Signs
# of tensors are not known here.
_KEEP_SIGN = frozenset((
    *("abs", "add", "ceil", "clamp", "clamp_max", "clamp_min", "copy", "cosh", "div", "exp"),
    *("exp2", "expm1", "fill", "floor", "log1p", "mul", "nan_to_num", "pow", "reciprocal", "relu"),
    *("round", "rsqrt", "sigmoid", "sinh", "sqrt", "square", "tanh", "trunc", "zero"),
))  # fmt: skip


def _check_sign(op: OpOverload, home: Spec, args: Args, kwargs: Kwargs) -> None:
    """Raise RuleError if a result that may be negative would be written to pending norms."""
    name = op._schema.name.rpartition("::")[2].removesuffix("_").removeprefix("_foreach_")
    if name in _KEEP_SIGN and not any(map(_may_be_negative, tree_leaves((args, kwargs)))):
        return
    raise RuleError(
        f"{op} to write its result in place to {home.text}",
        found="pending norms, which are not reduced yet",
        why="the result may be negative, and a pending norm cannot represent negative values",
        hint="redistribute to Replicate() first, or use the operator's out-of-place form",
    )


def _may_be_negative(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, (int, float)) and value < 0)


def _is_norm(spec: Spec) -> bool:
    pending = [each for each in spec.placements if isinstance(each, Partial)]
    return any(norm_exponent(each.reduce_op) is not None for each in pending)


def bring_back(backs: Sequence[Back], given: Any, local: Any) -> None:
    """Copy results written in another layout into the tensors that they belong to.

    `given` and `local` are the arguments (positional, by name) of the call and of the operator run.
    """
    leaves = zip(tree_leaves(given), tree_leaves(local), strict=True)
    numbered = [pair for pair in leaves if isinstance(pair[0], torch.Tensor)]
    for back in backs:
        home, value = numbered[back.whose]
        home._local_tensor.copy_(execute(value, back.spec, back.plan, back.origin))


def without_out(op: OpOverload, names: Collection[str]) -> OpOverload:
    """Return the operator that returns the values that `op` writes to the arguments `names`.

    It may have further options, such as a dtype, that `op` takes from its destination.

    Raises:
        RuleError: There is no such operator.
    """
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.partition("::")[2])
    wanted = [str(a.type) for a in op._schema.arguments if a.name not in names]
    there = [getattr(packet, name) for name in packet.overloads()]
    for found in there:
        if found is not op and [str(a.type) for a in found._schema.arguments] == wanted:
            return found
    for found in there:
        arguments = found._schema.arguments
        rest = arguments[len(wanted) :]
        if [str(a.type) for a in arguments[: len(wanted)]] == wanted and all(
            a.kwarg_only and a.has_default_value() and not a.is_out for a in rest
        ):
            return found
    raise RuleError(f"{op} has no form without out=, which DTensors need")


def check_differentiable(op: OpOverload, args: Args, kwargs: Kwargs) -> None:
    """Raise torch's error if a call with `out=` has no gradients, which some calls have.

    Whether torch copies the result into `out=`, so that gradients pass, depends on the operator and
    at times on its arguments, so it is called on tensors without data.

    Raises:
        RuntimeError: A gradient is required, and the operator has none.
    """
    leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in leaves):
        return
    metas, named = tree_map_only(torch.Tensor, _without_data, (args, kwargs))
    try:
        with no_modes():
            op(*metas, **named)
    except Exception as error:  # others are raised by the call itself
        # torch's error is a plain RuntimeError, which only its text distinguishes.
        if "support automatic differentiation" in str(error):
            raise RuntimeError(str(error)) from None


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    shape, dtype = tensor.shape, tensor.dtype
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=tensor.requires_grad)


def outs_of(
    op: OpOverload, results: Sequence[Spec | None] | None, kwargs: Kwargs, names: Collection[str]
) -> tuple[Out, ...]:
    """Return the destinations of the results, in order.

    Raises:
        RuleError: A result differs in shape from its destination.
    """
    given = [argument.name for argument in op._schema.arguments if argument.name in names]
    places: list[tuple[str, int | None]] = []
    for name in given:
        several = isinstance(kwargs[name], (list, tuple))
        places += [(name, n) for n in range(len(kwargs[name]))] if several else [(name, None)]
    if results is None:
        return tuple(Out(name, index, None, None, Origin(str(op), name)) for name, index in places)
    specs = [spec for spec in results if spec is not None]
    outs: list[Out] = []
    for (name, index), result in zip(places, specs, strict=True):
        tensor = kwargs[name] if index is None else kwargs[name][index]
        goal = getattr(tensor, "_spec", None)
        if goal is not None and goal.shape != result.shape:
            raise does_not_fit(op, goal, result.shape)
        target = result.replicated() if goal is None else result.with_placements(goal.placements)
        outs.append(Out(name, index, result, plan_between(result, target), Origin(str(op), name)))
    return tuple(outs)


def does_not_fit(op: OpOverload, spec: Spec, shape: Sequence[int]) -> RuleError:
    """Make the error for writing a result of another shape."""
    return RuleError(
        f"{op} to change the shape of {spec.text} in place",
        found=f"a result of shape {tuple(shape)}",
        why="the shape of a written argument cannot change",
        hint="use the operator's out-of-place form",
    )


def _brought(op: OpOverload, out: Out, result: torch.Tensor, kwargs: Kwargs) -> Any:
    """Return the local result in the layout of its destination."""
    goal = getattr(out.of(kwargs), "_spec", None)
    if out.spec is not None and out.plan is not None:
        return execute(result, out.spec, out.plan, out.origin)
    if goal is None:
        return result
    if goal.shape != result.shape:
        raise does_not_fit(op, goal, result.shape)
    full = goal.replicated()
    return execute(result, full, plan_between(full, goal), out.origin)


def fill_outs(outs: Sequence[Out], op: OpOverload, results: Any, kwargs: Kwargs) -> Any:
    """Copy the local results into the tensors of `out=`, in their layouts, and return these.

    A plain destination is an empty tensor that torch made for an unused result; it is resized.
    """
    several = results if isinstance(results, (list, tuple)) else [results]
    made = [value for value in several if isinstance(value, torch.Tensor)]
    # All destinations are checked before the first one is written.
    for out in outs:
        copied = getattr(out.of(kwargs), "_copied", None)
        if copied is not None:
            check_writable(copied)
    for out, result in zip(outs, made, strict=True):
        target, value = out.of(kwargs), _brought(op, out, result, kwargs)
        if not hasattr(target, "_spec"):
            target.resize_(value.shape).copy_(value)
            continue
        target._local_tensor.copy_(value)
        if target._copied is not None:
            write_through(target._copied, op, (target,))
    found = [out.of(kwargs) for out in outs]
    return None if not op._schema.returns else found[0] if len(found) == 1 else tuple(found)
