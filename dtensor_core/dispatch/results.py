"""Results of a call from local results: wrapped, or written to the tensors that they belong to.

`FINISH` has a function per kind of call. `dispatch` calls it for every result but a single new
tensor, which it wraps itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from dtensor_core import observe
from dtensor_core.dispatch.arguments import Args, Kwargs, first_mesh, spec_on
from dtensor_core.dispatch.cache import CACHE, MOST_EMPTY
from dtensor_core.dispatch.entry import (
    CallKind,
    InPlaceCall,
    ListCall,
    OutCall,
    PlainCall,
    ReshapingCall,
    ViewCall,
    ViewsCall,
)
from dtensor_core.dispatch.special.inplace_writeback import bring_back, fill_outs
from dtensor_core.dispatch.special.materialized_views import (
    LocalCopy,
    MaterializedView,
    class_of_copies,
    version_of,
    write_through,
)
from dtensor_core.operators.kernels.memory_layout import conversions_of
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload, without_torch_dispatch
from dtensor_core.torch_internals.tensors import is_alias_of, make_wrapper, new_dtensor
from dtensor_core.torch_internals.trees import tree_map_only

# From these, DTensors take their storage offsets.
_empty_tensors = CACHE.empty_tensors
# The DTensor class and that of views which are copies.
_class: type[Any] = torch.Tensor
_class_of_copies: type[Any] = torch.Tensor


def install(cls: type[torch.Tensor]) -> None:
    """Wrap results in this class."""
    global _class, _class_of_copies
    _class = cls
    _class_of_copies = class_of_copies(cls)


def observed(op: OpOverload, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """Run a function that replaces `op`, through `observe.runner` if a recorder has set it."""
    runner = observe.runner
    return function(*args, **kwargs) if runner is None else runner(op, function, args, kwargs)


def _finish_plain(
    op: OpOverload, call: PlainCall | InPlaceCall, result: Any, args: Args, kwargs: Kwargs, *_: Any
) -> Any:
    """Wrap the local results."""
    if call.outputs is None:
        return tree_map_only(torch.Tensor, lambda t: _full(t, args, kwargs), result)
    several = result if isinstance(result, (list, tuple)) else [result]
    specs = iter(call.outputs)
    wrapped: list[Any] = []
    for value in several:
        spec = next(specs) if isinstance(value, torch.Tensor) else None
        wrapped.append(value if spec is None else from_first(_class, value, spec))
    if several is not result:
        return wrapped[0]
    return wrapped if type(result) is list else tuple(wrapped)


def _finish_view(
    op: OpOverload,
    call: ViewCall,
    result: Any,
    args: Args,
    kwargs: Kwargs,
    *_: Any,
    number: int = 0,
) -> Any:
    """Wrap a view of the first argument, the result of this `number`.

    A view that had to be a copy, or views such a copy, records its base. A view of a tensor made
    outside of inference mode shares its version counter.
    """
    base = args[0]
    offset = base.storage_offset() + (call.offsets[number] if call.offsets else 0)
    spec = call.outputs[number] if call.outputs else None
    assert spec is not None
    if call.copied and is_alias_of(result, base._local_tensor):
        result = result.clone()  # this rank holds all of it; a write to the base must not reach it
    copied = getattr(base, "_copied", None)
    conversions = conversions_of(result) if call.may_copy and not call.copied else None
    cls = (
        _class_of_copies if call.copied or copied is not None or conversions is not None else _class
    )
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            view = from_first(cls, result, spec, offset=offset)
    else:
        view = from_first(cls, result, spec, offset=offset)
    if call.copied:
        copied = MaterializedView(
            base, op, number, tuple(args[1:]), dict(kwargs), result, spec, version_of(base)
        )
    elif conversions is not None:
        copied = LocalCopy(base, conversions, result, version_of(base))
    if copied is not None:
        view._copied = copied
    return view


def _finish_in_place(
    op: OpOverload,
    call: InPlaceCall,
    result: Any,
    args: Args,
    kwargs: Kwargs,
    local: Args,
    local_kwargs: Kwargs,
) -> Any:
    """Write results back to their arguments, and return the arguments themselves."""
    if call.backs:
        observed(op, bring_back, (call.backs, (args, kwargs), (local, local_kwargs)), {})
    for place in call.aside:
        given = args[place] if isinstance(place, int) else kwargs[place]
        if not isinstance(given, (list, tuple)):
            given = (given,)
        elif isinstance(call, ListCall):  # torch leaves the versions to the operator's kernels
            increment_version(given)
        for each in given:
            if type(each) is _class_of_copies and each._copied is not None:
                write_through(each._copied, None, (each,))
    if call.returns_nothing:
        return None
    if not call.written:
        return _finish_plain(op, call, result, args, kwargs)
    places = [args[p] if isinstance(p, int) else kwargs[p] for p in call.written]
    for place in places:
        if getattr(place, "_copied", None) is not None:
            write_through(place._copied, op, args)
    return places[0] if len(places) == 1 else tuple(places)


def _finish_views(
    op: OpOverload,
    call: ViewCall,
    result: Sequence[torch.Tensor],
    args: Args,
    kwargs: Kwargs,
    *_: Any,
) -> Any:
    """Wrap several views of the first argument."""
    views = [
        _finish_view(op, call, view, args, kwargs, number=number)
        for number, view in enumerate(result)
    ]
    return views if type(result) is list else tuple(views)


def _finish_reshaping(
    op: OpOverload, call: ReshapingCall, result: Any, args: Args, kwargs: Kwargs, *_: Any
) -> Any:
    """Give the first argument the result and its spec."""
    # A DTensor has no elements of its own: this changes its global shape and strides only.
    with without_torch_dispatch():
        op(*args, **kwargs)
    args[0]._local_tensor, args[0]._spec = result, call.spec
    return args[0]


def _finish_out(
    op: OpOverload, call: OutCall, result: Any, args: Args, kwargs: Kwargs, *_: Any
) -> Any:
    """Copy the results to the tensors of `out=`."""
    return observed(op, fill_outs, (call.outs, op, result, kwargs), {})


def from_first(
    cls: type[Any], local: torch.Tensor, spec: Spec, requires_grad: bool = False, offset: int = 0
) -> Any:
    """Make a DTensor with the global tensor's storage offset.

    A view of a DTensor begins as far from its base as on a single device, everything else at 0. The
    local tensor's offset differs between ranks. But transforms of torch.func find a view that is
    written by its offset, composite kernels read it, and dual numbers compare the offsets of primal
    and tangent.
    """
    if type(local) is not torch.Tensor:
        return _around_another(cls, local, spec, requires_grad, offset)
    if local.storage_offset() == offset:
        return new_dtensor(cls, local, spec, requires_grad)
    kind = local.dtype, local.device, offset
    like = _empty_tensors.get(kind)
    if like is None:
        if len(_empty_tensors) >= MOST_EMPTY:
            _empty_tensors.clear()
        like = _empty_tensors[kind] = local.new_empty(0).as_strided((0,), (1,), offset)
    made = new_dtensor(cls, like, spec, requires_grad)
    made._local_tensor = local
    return made


def _around_another(
    cls: type[Any], local: torch.Tensor, spec: Spec, requires_grad: bool, offset: int
) -> Any:
    """Make a DTensor around a tensor of a subclass, whose offset may be symbolic."""
    found = local.storage_offset()
    if type(found) is int and found == offset:
        return new_dtensor(cls, local, spec, requires_grad)
    made = make_wrapper(
        cls,
        spec.shape,
        strides=spec.stride,
        storage_offset=offset,
        dtype=spec.dtype,
        device=local.device,
        requires_grad=requires_grad,
    )
    made._local_tensor, made._spec = local, spec
    return made


def _full(local: torch.Tensor, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Wrap a result whose shape depends on data: it is replicated."""
    spec = spec_on(first_mesh(args, kwargs), local)
    return new_dtensor(_class, local, spec, False)


FINISH: dict[type[CallKind], Callable[..., Any]] = {
    PlainCall: _finish_plain,
    ViewCall: _finish_view,
    ViewsCall: _finish_views,
    InPlaceCall: _finish_in_place,
    ListCall: _finish_in_place,
    ReshapingCall: _finish_reshaping,
    OutCall: _finish_out,
}
