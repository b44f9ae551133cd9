"""The function that a rank runs on its local tensors: the operator, or a replacement.

A rule may replace the operator (`ShardingRule.local`). A rank whose results are all empty runs
nothing: many kernels refuse empty tensors, and a rank that raises alone would leave the others
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from dtensor_core.layout import stride_like
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import (
    LAZY_BITS,
    OpOverload,
    excluded_keys,
    included_keys,
    with_keys,
)
from dtensor_core.torch_internals.trees import tree_leaves, tree_map_only
from dtensor_core.tracing import depending, is_at_hand

# A local function, and its maker from the operator and the layouts of arguments and results.
Local = Callable[..., Any]
LocalMaker = Callable[[Local, Sequence[Spec], Sequence[Spec | None]], Local]


@lru_cache(maxsize=4096)
def argument_names(op: OpOverload) -> Mapping[str, int]:
    """Return the positions of an operator's arguments by name.

    Cached, since a schema rebuilds its list of arguments on every access.
    """
    return {argument.name: position for position, argument in enumerate(op._schema.arguments)}


def local_operator(
    op: OpOverload, maker: LocalMaker | None, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> Local:
    """Return the function that this rank runs: the operator, or its replacement by `maker`."""
    if inputs[0].coords is None:
        return _outside(op, outputs)
    if maker is not None:
        run = maker(op, inputs, outputs)
        if run is not op:
            return run
    written = op._schema.is_mutable
    # An operator that writes returns its argument, for which new zeros are no substitute.
    if outputs and not written and all(is_empty_here(spec) for spec in outputs):
        return refusing(op, inputs, zeros(op, outputs))
    return refusing(op, inputs, op)


def with_lazy_bits(run: Local) -> Local:
    """Make a function run with the conjugate and negative dispatch keys enabled.

    Within `__torch_dispatch__` torch excludes these keys. Composite kernels (`pinv`) would then
    ignore the conjugate bit of their own intermediate tensors.
    """

    def with_keys_enabled(*args: Any, **kwargs: Any) -> Any:
        with with_keys(included_keys(), excluded_keys() - LAZY_BITS):
            return run(*args, **kwargs)

    return with_keys_enabled


def standing_for(op: Local, function: Local) -> Local:
    """Mark a function as running this operator with other arguments, for recorders."""
    function.runs = op  # pyright: ignore[reportFunctionMemberAccess]
    return function


# They read positions in their first tensor, and raise for one that it does not have.
_READING_POSITIONS = frozenset(
    {"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put", "take", "put"}
    | {"index_select", "index_add", "index_copy", "index_fill", "index_reduce", "embedding"}
    | {"gather", "scatter", "scatter_add", "scatter_reduce", "embedding_renorm"}
    | {"_embedding_bag", "_embedding_bag_forward_only"}
)


def refusing(op: Local, inputs: Sequence[Spec], run: Local) -> Local:
    """Make `run` refuse the positions that other ranks refuse, if the first tensor is empty here.

    Kernels check no positions in a tensor without elements. Therefore the operator is called first,
    for its errors alone, on tensors of size 1 in the dims where this rank is empty. Not
    where that would require waiting for a device.
    """
    name = op._schema.name  # pyright: ignore[reportFunctionMemberAccess]
    name = name.removeprefix("aten::").removesuffix("_")
    if name not in _READING_POSITIONS or not is_empty_here(inputs[0]):
        return run

    def checked(*args: Any, **kwargs: Any) -> Any:
        specs = iter(inputs)
        if all(is_at_hand(leaf) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)):
            op(*tree_map_only(torch.Tensor, lambda x: _of_size_1(x, next(specs)), args), **kwargs)
        return run(*args, **kwargs)

    return standing_for(op, checked) if run is op else checked


def _of_size_1(x: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Return zeros of size 1 where this rank holds nothing; a tensor with elements unchanged."""
    if not is_empty_here(spec):
        return x
    pairs = zip(x.shape, spec.shape, strict=True)
    return x.new_zeros([1 if size == 0 and full else size for size, full in pairs])


def functional(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator, or the packet of its out-of-place overloads if it is in-place."""
    name = op._schema.name.removeprefix("aten::")  # pyright: ignore[reportFunctionMemberAccess]
    return getattr(torch.ops.aten, name.removesuffix("_")) if name.endswith("_") else op


def is_empty_here(spec: Spec) -> bool:
    """True if this rank holds nothing of a tensor that is not empty globally."""
    return 0 in spec.local_shape and spec.local_shape != tuple(spec.shape)


def _outside(op: OpOverload, outputs: Sequence[Spec]) -> Callable[..., Any]:
    """Make the function of a rank outside of the mesh; it returns empty tensors, zeros, or True."""
    if not outputs:
        return lambda *args, **kwargs: _nothing(op, args)
    return zeros(op, outputs)


def _nothing(op: OpOverload, args: Sequence[Any]) -> Any:
    """Return placeholders for results whose shape depends on data."""
    like = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
    kinds = [str(returned.type) for returned in op._schema.returns]
    made = [like.new_zeros(0) if k == "Tensor" else True if k == "bool" else 0 for k in kinds]
    return made[0] if len(made) == 1 else tuple(made)


def zeros(op: OpOverload, outputs: Sequence[Spec]) -> Callable[..., Any]:
    """Make a function that returns zeros in place of the results, for a rank without work."""
    returns = op._schema.returns
    single = len(returns) == 1 and str(returns[0].type) == "Tensor"

    def make(*args: Any, **kwargs: Any) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        device = kwargs.get("device") or given[0].device
        made = [
            depending(torch.zeros(spec.local_shape, dtype=spec.dtype, device=device), *given)
            for spec in outputs
        ]
        if single:
            return made[0]
        masks = [arg for arg in args if isinstance(arg, (list, tuple)) and _is_mask(op, arg)]
        wanted = iter(made)
        if masks:
            return tuple(next(wanted) if is_requested else None for is_requested in masks[-1])
        if len(returns) in (1, len(made)):  # a list of tensors, or nothing but tensors
            return made
        metas = tree_map_only(torch.Tensor, lambda each: each.to("meta"), (args, kwargs))
        like = op(*metas[0], **metas[1])  # it has numbers and None among its results
        return tuple(next(wanted) if isinstance(each, torch.Tensor) else each for each in like)

    return make


def _is_mask(op: OpOverload, arg: Sequence[Any]) -> bool:
    """True for the argument that selects the requested results."""
    return len(arg) == len(op._schema.returns) and all(isinstance(each, bool) for each in arg)


def called_with(
    op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], **changed: Any
) -> Any:
    """Call an operator with some of its arguments replaced."""
    places = argument_names(op)  # pyright: ignore[reportArgumentType]
    given, named = list(args), dict(kwargs)
    for name, value in changed.items():
        if places[name] < len(given):
            given[places[name]] = value
        else:
            named[name] = value
    return op(*given, **named)


def by_name(
    op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, with None for those not given."""
    names = argument_names(op)  # pyright: ignore[reportArgumentType]
    return {**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **kwargs}


def with_local_size(position: int) -> LocalMaker:
    """Replace the size argument at `position` by the local shape.

    A stride argument directly behind it is replaced by the local stride.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        out = outputs[0]
        if out is None or out.local_shape == tuple(out.shape):
            return op
        size = list(out.local_shape)
        stride = list(stride_like(size, out.stride))

        def local(*args: Any, **kwargs: Any) -> Any:
            changed = list(args)
            changed[position] = size
            if len(args) > position + 1 and isinstance(args[position + 1], (list, tuple)):
                changed[position + 1] = stride
            return op(*changed, **kwargs)

        return standing_for(op, local)

    return maker


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for accumulation: float32 for half-precision dtypes."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def zeros_if_empty(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Return zeros on a rank with an empty argument, which kernels refuse."""
    if not any(0 in spec.local_shape and 0 not in spec.shape for spec in inputs):
        return op
    made = [spec.local_shape for spec in outputs if spec is not None]

    def nothing(*args: Any) -> Any:
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        found = [depending(given[0].new_zeros(shape), *given) for shape in made]
        several = len(op._schema.returns)  # pyright: ignore[reportFunctionMemberAccess]
        return (None,) * (several - len(found)) + tuple(found) if several > 1 else found[0]

    return nothing
