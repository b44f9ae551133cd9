"""Entries: decided calls in the form that `dispatch` can run repeatedly.

Made on a cache miss from the call's global metadata, the decision of `propagate`, and this rank's
local operator. Nothing here runs on a cached call. The file is long because each kind of call
(plain, on lists, with `out=`, without tensors) makes the same record from the same few facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from dtensor_core.dispatch.arguments import converted, flattened
from dtensor_core.dispatch.decomposition import derivation
from dtensor_core.dispatch.fallback import NO_RULE, Missing, missing
from dtensor_core.dispatch.grad_scaler import UNSCALE, unscaling
from dtensor_core.dispatch.inplace_writeback import Back, Out, does_not_fit, outs_of, without_out
from dtensor_core.dispatch.lists import (
    decide_elements,
    is_list_operator,
    local_list_operator,
    plans_by_number,
)
from dtensor_core.dispatch.metadata import copies_sizes, output_metadata
from dtensor_core.errors import RuleError, four_parts
from dtensor_core.local.memory_layout import MAY_COPY
from dtensor_core.local.operator import argument_names, local_operator, with_lazy_bits
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Replicate
from dtensor_core.propagate import Decision, Fixed, decide
from dtensor_core.redistribute.execute import Cause
from dtensor_core.redistribute.partial_combine import within
from dtensor_core.redistribute.plan import Plan, plan_between
from dtensor_core.rules.call import Call
from dtensor_core.spec import Spec, TensorMeta

# In-place views: the tensor changes its shape, and its placements change with it.
_RESHAPING = frozenset(
    f"aten::{name}_"
    for name in (
        "squeeze",
        "unsqueeze",
        "transpose",
        "t",
        "swapaxes",
        "swapdims",
        "as_strided",
    )
)


@dataclass(slots=True, eq=False)
class Entry:
    """A cached decision, ready to run.

    Not frozen, although it is never modified: setting frozen fields takes a fifth of a first call.

    Attributes:
        run: The function to run on local tensors.
        moves: The redistributions of tensor arguments, by number.
        outputs: The specs of the results to wrap. None: all are replicated; an element None: plain.
        single: The spec of the only result, if there is one to wrap.
        written: The arguments written in place that are returned.
        place: The position of the only such argument.
        returns_nothing: True if the operator has no results.
        view: True if a result is a view of the first argument.
        copied: True if a view had to be made as a copy, because it needed communication.
        read: The names of the arguments whose values the decision depends on.
        backs: Redistributions of written copies to the arguments that they belong to.
        reshapes: True if the first argument takes the spec of the result, in place.
        outs: Destinations of results that the caller has given tensors for.
        is_bare: True if the entry only runs the operator in place on local tensors.
        missing: Describes the data that is gathered for lack of a rule.
        sizeless: True if the entry only runs the operator and moves nothing, for all sizes of one
            pattern (see `shape_generic_cache`).
        is_derived: True if `run` takes the DTensors themselves.
        may_copy: True if a view is of a copy on ranks whose part can't be viewed (see
            `local.memory_layout`).
        aside: The arguments that are written and not returned.
    """

    run: Callable[..., Any]
    moves: tuple[tuple[int, Plan, Cause], ...]
    outputs: tuple[Spec | None, ...] | None
    single: Spec | None
    written: tuple[int | str, ...]
    place: int | None
    returns_nothing: bool
    view: bool = False
    copied: bool = False
    read: frozenset[str] = frozenset()
    backs: tuple[Back, ...] = ()
    reshapes: bool = False
    outs: tuple[Out, ...] = ()
    is_bare: bool = False
    missing: Missing | None = None
    sizeless: bool = False
    is_derived: bool = False
    may_copy: bool = False
    aside: tuple[int | str, ...] = ()


def make_entry(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, derives: bool = True
) -> Entry:
    """Make the entry of a call with these arguments.

    Args:
        op: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        derives: Allow a decomposition; otherwise `run` is a local operator.

    Raises:
        MeshError: The arguments are on different meshes.
        RuleError: The call can't be decided.
    """
    mesh = first_mesh(args, kwargs)

    def spec_of(tensor: torch.Tensor) -> Spec:
        return spec_on(mesh, tensor)

    spec_args, spec_kwargs = converted(torch.Tensor, spec_of, args, kwargs)
    written = _written(op, args, kwargs)
    outs = {name for name in written if isinstance(name, str)}
    names, specs = _numbered(op, spec_args, {k: v for k, v in spec_kwargs.items() if k not in outs})
    if is_list_operator(op):
        plain = _plain_numbers(tuple(args), dict(kwargs))
        return _list_entry(op, spec_args, spec_kwargs, names, written, plain)
    if not specs:
        return _factory_entry(op, spec_args, spec_kwargs, written)
    if outs:
        return _out_entry(op, args, kwargs, outs)
    outputs = output_metadata(op, spec_args, spec_kwargs)
    call = Call(op, spec_args, spec_kwargs, specs, outputs or ())
    returned = _returned(op, written)
    reshapes = op._schema.name in _RESHAPING
    fixed = _fixed(call, written) if written and not reshapes else []
    decision = decide(call, fixed)
    instead = derivation(call, decision) if derives and decision.lacks_rule else None
    if instead is not None:
        return _derived_entry(op, instead)
    note = _note(decision)
    moves = tuple(
        (number, plan, Cause(str(op), names[number], decision.considered, note))
        for number, plan in enumerate(decision.plans)
        if plan.steps
    )
    maker = decision.rule and decision.rule.local
    run = local_operator(
        _functional(op) if reshapes else op, maker, decision.inputs, decision.outputs
    )
    if decision.exchanges and decision.inputs[0].coords is not None:
        run = _exchanging(op, run, decision, names)
    backs = _backs(op, fixed, decision, specs)
    aside = _aside(op, written, returned)
    place = None if backs or reshapes or aside else _only_place(op, returned, args)
    ready = op._op if run is op else run
    if any(spec.dtype.is_complex for spec in (*decision.inputs, *decision.outputs)):
        ready = with_lazy_bits(ready)
    return Entry(
        run=ready,
        moves=moves,
        outputs=None if outputs is None else decision.outputs,
        single=decision.outputs[0]
        if outputs is not None and _returns_one_tensor(op) and not returned and not aside
        else None,
        written=returned,
        place=place,
        returns_nothing=not op._schema.returns,
        aside=aside,
        view=_is_view(op),
        copied=_is_view(op) and (bool(moves) or _is_copy(decision)),
        read=frozenset(call.read),
        may_copy=maker in MAY_COPY,
        backs=backs,
        reshapes=reshapes,
        is_bare=run is op and place == 0 and not moves,
        missing=missing(op, names, specs, moves) if note else None,
        sizeless=run is op
        and decision.sizeless
        and (decision.rule is None or decision.rule.local is None)
        and not written
        and not _plain_numbers(tuple(args), kwargs)
        and copies_sizes(op, spec_args, spec_kwargs),
    )


def _note(decision: Decision) -> str:
    """Return the note that the reason of an argument's communication carries."""
    return NO_RULE if decision.lacks_rule else ""


def _exchanging(
    op: OpOverload, run: Callable[..., Any], decision: Decision, names: Sequence[str]
) -> Callable[..., Any]:
    """Return the function this rank runs in place of `run` where ranks exchange data within it."""
    inputs = decision.inputs
    causes: list[Cause] = []
    for exchange in decision.exchanges:
        moved = next(
            n for n, s in enumerate(inputs) if s.placements[exchange.axis].sharded_dim is not None
        )
        causes.append(Cause(str(op), names[moved], decision.considered))
    return within(decision.exchanges, op, run, inputs, decision.outputs[0], causes)


def _backs(
    op: OpOverload, fixed: Sequence[Fixed], decision: Decision, specs: Sequence[Spec]
) -> tuple[Back, ...]:
    """Return the write-backs of arguments that were written in another layout than their own."""
    backs: list[Back] = []
    for each in fixed:
        now, home = decision.inputs[each.whose], specs[each.whose]
        if now is not home:
            backs.append(Back(each.whose, now, plan_between(now, home), Cause(str(op), "written")))
    return tuple(backs)


def _is_copy(decision: Decision) -> bool:
    """True if a result has rows or reduced values that its argument has not, so it is no view."""
    if any(exchange.moves for exchange in decision.exchanges):
        return True
    if not decision.outputs:  # `unbind` along a dim without elements
        return False
    before, after = decision.inputs[0].placements, decision.outputs[0].placements
    return any(b.is_partial() and not a.is_partial() for a, b in zip(before, after, strict=True))


def _functional(op: OpOverload) -> OpOverload:
    """Return the out-of-place form of an in-place operator."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_"))
    wanted = [str(argument.type) for argument in op._schema.arguments]
    for name in packet.overloads():
        found = getattr(packet, name)
        if [str(argument.type) for argument in found._schema.arguments] == wanted:
            return found
    raise RuleError(f"{op} changes a shape in place and has no form that does not")


@lru_cache(maxsize=4096)
def _is_view(op: OpOverload) -> bool:
    """True if a result shares its elements with an argument that is not written."""
    alias = op._schema.returns[0].alias_info if op._schema.returns else None
    return alias is not None and not alias.is_write


def _list_entry(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    written: tuple[int | str, ...],
    plain: frozenset[int],
) -> Entry:
    """Make the entry of a list operator from the decisions of its elements."""
    elements = decide_elements(op, args, kwargs, written, plain)
    moves = tuple(
        (number, plan, Cause(str(op), names[number], decision.considered, _note(decision)))
        for number, (plan, decision) in plans_by_number(elements).items()
    )
    lacking = [move for move in moves if move[2].note]
    specs = [value for value in flattened(args, kwargs) if isinstance(value, Spec)]
    backs = tuple(
        Back(e.numbers[back.whose], back.spec, back.plan, back.cause)
        for e in elements
        for back in _backs(op, e.fixed, e.decision, e.call.specs)
    )
    return Entry(
        run=unscaling(elements) if op is UNSCALE else local_list_operator(op, elements),
        moves=moves,
        outputs=tuple(None if e.is_plain else e.decision.outputs[0] for e in elements),
        single=None,
        written=written,
        place=None,
        returns_nothing=not op._schema.returns,
        aside=_aside(op, written, ()),
        read=frozenset().union(*(element.call.read for element in elements)),
        backs=backs,
        missing=missing(op, names, specs, lacking) if lacking else None,
    )


def _derived_entry(op: OpOverload, instead: Callable[..., Any]) -> Entry:
    """Make the entry of a call that is decomposed, valid for these argument values only."""
    read = frozenset(argument_names(op))
    return Entry(instead, (), None, None, (), None, False, read=read, is_derived=True)


def _out_entry(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], names: set[str]
) -> Entry:
    """Make the entry of a call with `out=`: that of the call without it, plus the destinations."""
    rest = {name: arg for name, arg in kwargs.items() if name not in names}
    functional = without_out(op, names)
    if "dtype" in argument_names(functional) and "dtype" not in argument_names(op):
        (target,) = (kwargs[name] for name in names)
        rest["dtype"] = target.dtype
    entry = make_entry(functional, args, rest, derives=False)
    run = entry.run

    def local(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **{name: arg for name, arg in kwargs.items() if name not in names})

    outs = outs_of(op, entry.outputs, kwargs, names)
    return replace(
        entry,
        run=local,
        single=None,
        view=False,
        written=tuple(names),
        outs=outs,
        sizeless=False,  # the plans to `out` depend on its sizes
    )


def _factory_entry(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    written: tuple[int | str, ...],
) -> Entry:
    """Make the entry of a call whose only tensor is `out=`.

    Every rank computes the full result and keeps its part.

    Raises:
        RuleError: The result does not fit `out`, or `out` holds partial sums.
    """
    (place,) = written
    spec: Spec = kwargs[str(place)]
    call = Call(op, args, kwargs, (), output_metadata(op, args, kwargs) or ())
    _fixed(call, written)
    if spec.sums:
        raise RuleError(
            four_parts(
                asked=f"{op} to write to {spec.text}",
                found="addends that are not yet added up",
                why="what is written would be added up again",
                hint="write to a tensor that is Replicate or Shard",
            )
        )

    def run(*args: Any, **kwargs: Any) -> Any:
        out = kwargs[str(place)]
        if spec.coords is not None:
            whole = out.new_empty_strided(spec.shape, spec.stride)
            op(*args, **{**kwargs, str(place): whole})
            out.copy_(spec.part_of(whole))
        return out

    return Entry(run, (), None, None, written, None, returns_nothing=False)


def spec_on(mesh: DeviceMesh, tensor: torch.Tensor) -> Spec:
    """Return the spec of an argument; a plain tensor counts as replicated on `mesh`."""
    spec = getattr(tensor, "_spec", None)
    if spec is not None:
        return spec
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return Spec(mesh, (Replicate(),) * mesh.ndim, meta)


def first_mesh(args: Sequence[Any], kwargs: Mapping[str, Any]) -> DeviceMesh:
    """Return the mesh of the first DTensor among the arguments."""
    for arg in flattened(args, kwargs):
        spec = getattr(arg, "_spec", None)
        if isinstance(spec, Spec):
            return spec.mesh
    raise AssertionError("dispatched without a DTensor")


@lru_cache(maxsize=4096)
def _returns_one_tensor(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _written(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int | str, ...]:
    """Return the arguments that the call writes to: positions, or names of `out=`."""
    if not op._schema.is_mutable:
        return ()
    found: list[int | str] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if position < len(args):
                found.append(position)
            elif argument.name in kwargs:
                found.append(argument.name)
    return tuple(found)


def _returned(op: OpOverload, written: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the written arguments that are results; all of them if nothing is returned."""
    if not written:
        return ()
    aliases = [_alias(each) for each in op._schema.returns]
    schema = dict(enumerate(op._schema.arguments)) | {a.name: a for a in op._schema.arguments}
    return tuple(place for place in written if not aliases or _alias(schema[place]) in aliases)


def _aside(
    op: OpOverload, written: Sequence[int | str], returned: Sequence[int | str]
) -> tuple[int | str, ...]:
    """Return the written arguments that are not results, such as running statistics."""
    if not op._schema.returns:
        return tuple(written)
    return tuple(place for place in written if place not in returned)


def _alias(argument: Any) -> Any:
    """Return the alias set that an argument shares with a result in the same memory."""
    return argument.alias_info and tuple(argument.alias_info.before_set)


def _numbered(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], tuple[Spec, ...]]:
    """Return names and specs of the tensor arguments, lists flattened."""
    names: list[str] = []
    specs: list[Spec] = []
    for name, arg in (*zip(argument_names(op), args, strict=False), *kwargs.items()):
        if isinstance(arg, Spec):
            names.append(name)
            specs.append(arg)
        elif isinstance(arg, (list, tuple)):
            for index, each in enumerate(arg):
                if isinstance(each, Spec):
                    names.append(f"{name}[{index}]")
                    specs.append(each)
    return names, tuple(specs)


def _plain_numbers(args: Any, kwargs: Mapping[str, Any]) -> frozenset[int]:
    """Return the numbers of the plain tensors among the arguments."""
    found = [each for each in flattened(args, kwargs) if isinstance(each, torch.Tensor)]
    return frozenset(n for n, each in enumerate(found) if not hasattr(each, "_spec"))


def _only_place(op: OpOverload, written: Sequence[int | str], args: Sequence[Any]) -> int | None:
    """Return the position of the DTensor that an in-place operator returns, or None."""
    if op._schema.returns and len(written) == 1 and isinstance(written[0], int):
        return written[0] if hasattr(args[written[0]], "_spec") else None
    return None


def _fixed(call: Call, written: Sequence[int | str]) -> list[Fixed]:
    """Return the arguments whose layout is fixed because they are written, with their results."""
    results = {_alias(each): number for number, each in enumerate(call.op._schema.returns)}
    schema = dict(enumerate(call.op._schema.arguments)) | {
        argument.name: argument for argument in call.op._schema.arguments
    }
    fixed: list[Fixed] = []
    for place in written:
        spec = call.args[place] if isinstance(place, int) else call.kwargs[place]
        if not isinstance(spec, Spec):
            continue
        result = results.get(_alias(schema[place]))
        result = None if result is None or result >= len(call.outputs) else result
        whose = call.number_at(place) if isinstance(place, int) else None
        if result is not None and call.outputs[result].shape != spec.shape:
            raise does_not_fit(call.op, spec, call.outputs[result].shape)
        if whose is not None:
            fixed.append(Fixed(whose, spec.placements, result))
    return fixed
