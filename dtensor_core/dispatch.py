"""The hot path: unwrap, look up, (redistribute), run the local operator, wrap.

A call is looked up by a key of its operator, the interned specs of its tensors and its static
arguments; scalars count by type only, so a scalar that changes every step does not grow the
cache. A miss asks `propagate` once. Called by `DTensor.__torch_dispatch__` alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from dtensor_core.errors import MixedTensorError, RuleError, four_parts
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Replicate
from dtensor_core.propagate import Fixed, decide
from dtensor_core.redistribute.execute import Cause, execute
from dtensor_core.redistribute.plan import Plan
from dtensor_core.rules.call import Call
from dtensor_core.rules.local import local_operator
from dtensor_core.rules.table import row_of
from dtensor_core.spec import Spec, TensorMeta

_CACHE_LIMIT = 65536
_SCALARS = frozenset((int, float, bool, complex))
# Types of schema arguments for which a Python number counts by its type only.
_VALUES = ("number", "float", "Tensor")
_new = torch.Tensor._dtensor__new__  # pyright: ignore[reportAttributeAccessIssue]


class MissingRuleWarning(UserWarning):
    """An operator without a sharding rule had its arguments gathered."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached decision, ready to run.

    `moves` are the redistributions of tensor arguments, by number; `result` says what is
    returned: the argument written in place, or `outputs` to wrap (None: whole, as they come).
    """

    run: Callable[..., Any]
    moves: tuple[tuple[int, Plan, Cause], ...]
    outputs: tuple[Spec, ...] | None
    single: Spec | None
    written: tuple[int | str, ...]
    returns_nothing: bool


_cache: dict[tuple[Any, ...], Entry] = {}
_dynamic: set[tuple[int, int | str]] = set()
_known: set[int] = set()
_composites: set[int] = set()


def dispatch(
    cls: type[torch.Tensor],
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> Any:
    """The result of an operator of which at least one argument is a DTensor of class `cls`.

    Raises MixedTensorError, MeshError or RuleError before anything is communicated or written.
    """
    op_id = id(op)
    key: list[Any] = [op_id]
    local: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is cls:
            key.append(arg._spec)
            local.append(arg._local_tensor)
        elif kind in _SCALARS:
            key.append(kind if (op_id, len(key)) in _dynamic else arg)
            local.append(arg)
        else:
            _other(cls, op, arg, key, local)
    local_kwargs: dict[str, Any] = {}
    if kwargs:
        for name, arg in kwargs.items():
            key.append(name)
            if type(arg) in _SCALARS and (op_id, name) in _dynamic:
                key.append(type(arg))
                local_kwargs[name] = arg
            else:
                value: list[Any] = []
                _other(cls, op, arg, key, value)
                local_kwargs[name] = value[0]
    else:
        kwargs = {}
    entry = _cache.get(tuple(key))
    if entry is None:
        if op_id not in _known:
            _learn(op)
            return dispatch(cls, op, args, kwargs)
        if op_id in _composites:
            return op.decompose(*args, **kwargs)
        entry = _miss(cls, op, args, kwargs, tuple(key))
    if entry.moves:
        _redistribute(entry, cls, args, kwargs, local, local_kwargs)
    result = entry.run(*local, **local_kwargs)
    if entry.single is not None:
        return _new(cls, result, entry.single, requires_grad=False)
    return _wrap(cls, entry, result, args, kwargs)


def _other(
    cls: type[torch.Tensor], op: OpOverload, arg: Any, key: list[Any], local: list[Any]
) -> None:
    """Add to key and local arguments one that is neither a DTensor nor a positional scalar."""
    if isinstance(arg, cls):
        key.append(arg._spec)  # pyright: ignore[reportAttributeAccessIssue]
        local.append(arg._local_tensor)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(arg, (list, tuple)):
        inner_key: list[Any] = []
        inner: list[Any] = []
        for each in arg:
            if type(each) is int:
                inner_key.append(each)
                inner.append(each)
            else:
                _other(cls, op, each, inner_key, inner)
        key.append(tuple(inner_key))
        local.append(inner)
    elif isinstance(arg, torch.Tensor):
        if arg.numel() != 1:
            raise _mixed(op, arg)
        key.append((torch.Tensor, arg.shape, arg.stride(), arg.dtype))
        local.append(arg)
    else:
        key.append(_hashable(arg))
        local.append(arg)


def _hashable(arg: Any) -> Any:
    return id(arg) if type(arg).__hash__ is None else arg


def _mixed(op: OpOverload, arg: torch.Tensor) -> MixedTensorError:
    return MixedTensorError(
        four_parts(
            asked=f"{op} on DTensors",
            found=f"got mixed torch.Tensor and DTensor: one argument is a plain tensor of shape "
            f"{tuple(arg.shape)} and dtype {arg.dtype}",
            why="how a plain tensor lies on the mesh is not known",
            hint="make it a DTensor: DTensor.from_local(t, mesh, [Replicate()]) if it is the same "
            "on every rank, distribute_tensor(t, mesh, placements) to split it",
        )
    )


def _learn(op: OpOverload) -> None:
    """Note which arguments of an operator are scalars, whose values don't matter for layouts.

    Also whether it is a composite without a row: in inference mode those arrive undivided.
    """
    for position, argument in enumerate(op._schema.arguments):
        if str(argument.type).removeprefix("Optional[").rstrip("]") in _VALUES:
            _dynamic.add((id(op), position + 1))
            _dynamic.add((id(op), argument.name))
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
    if row_of(op) is None and op.has_kernel_for_dispatch_key(implicit):
        _composites.add(id(op))
    _known.add(id(op))


def _miss(
    cls: type[torch.Tensor],
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    key: tuple[Any, ...],
) -> Entry:
    """Decide a call that was not seen before, and remember it."""
    entry = _entry(cls, op, args, kwargs)
    if len(_cache) >= _CACHE_LIMIT:
        del _cache[next(iter(_cache))]
    _cache[key] = entry
    return entry


def _entry(
    cls: type[torch.Tensor], op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Entry:
    mesh = _first_mesh(cls, args, kwargs)

    def spec_of(tensor: torch.Tensor) -> Spec:
        if isinstance(tensor, cls):
            return tensor._spec  # pyright: ignore[reportAttributeAccessIssue]
        meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
        return Spec(mesh, (Replicate(),) * mesh.ndim, meta)

    spec_args = tree_map_only(torch.Tensor, spec_of, tuple(args))
    spec_kwargs = tree_map_only(torch.Tensor, spec_of, dict(kwargs))
    written = _written(op, args, kwargs)
    outs = {name for name in written if isinstance(name, str)}
    names, specs = _numbered(op, spec_args, {k: v for k, v in spec_kwargs.items() if k not in outs})
    outputs = _output_metadata(op, spec_args, spec_kwargs)
    call = Call(op, spec_args, spec_kwargs, specs, outputs or ())
    fixed = _fixed(call, written)
    decision = decide(call, fixed)
    if decision.rule is None and decision.communicates:
        _warn_missing(op)
    moves = tuple(
        (number, plan, Cause(str(op), names[number], decision.considered))
        for number, plan in enumerate(decision.plans)
        if plan.steps
    )
    return Entry(
        run=local_operator(op, decision.rule, decision.inputs, decision.outputs),
        moves=moves,
        outputs=None if outputs is None else decision.outputs,
        single=decision.outputs[0]
        if outputs is not None and _returns_one_tensor(op) and not written
        else None,
        written=written,
        returns_nothing=not op._schema.returns,
    )


def _first_mesh(
    cls: type[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> DeviceMesh:
    for arg in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(arg, cls):
            return arg._spec.mesh  # pyright: ignore[reportAttributeAccessIssue]
    raise AssertionError("dispatched without a DTensor")


def _returns_one_tensor(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _written(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int | str, ...]:
    """The arguments that the call writes to and returns: positions, or names of `out=`."""
    found: list[int | str] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if position < len(args):
                found.append(position)
            elif argument.name in kwargs:
                found.append(argument.name)
    return tuple(found)


def _numbered(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[str], tuple[Spec, ...]]:
    """Names and specs of the tensor arguments, lists flattened."""
    names: list[str] = []
    specs: list[Spec] = []
    schema = op._schema.arguments
    given = [*((schema[i].name, arg) for i, arg in enumerate(args)), *kwargs.items()]
    for name, arg in given:
        if isinstance(arg, Spec):
            names.append(name)
            specs.append(arg)
        elif isinstance(arg, (list, tuple)):
            for index, each in enumerate(arg):
                if isinstance(each, Spec):
                    names.append(f"{name}[{index}]")
                    specs.append(each)
    return names, tuple(specs)


def _output_metadata(
    op: OpOverload, args: Any, kwargs: Mapping[str, Any]
) -> tuple[TensorMeta, ...] | None:
    """Global metadata of the results, by the operator's meta kernel; None if data decides it."""

    def as_meta(spec: Spec) -> torch.Tensor:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")

    meta_args = tree_map_only(Spec, as_meta, args)
    meta_kwargs = tree_map_only(Spec, as_meta, dict(kwargs))
    meta_kwargs = {k: "meta" if k == "device" else v for k, v in meta_kwargs.items()}
    try:
        result = op(*meta_args, **meta_kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
            return None
        raise
    leaves = torch.utils._pytree.tree_leaves(result)
    return tuple(
        TensorMeta(leaf.shape, leaf.stride(), leaf.dtype)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )


def _fixed(call: Call, written: Sequence[int | str]) -> dict[int, Fixed]:
    """Results that keep the layout of what they are written to."""
    fixed: dict[int, Fixed] = {}
    for result, place in enumerate(written):
        if result >= len(call.outputs):
            break
        spec = call.args[place] if isinstance(place, int) else call.kwargs[place]
        if not isinstance(spec, Spec):
            continue
        if call.outputs[result].shape != spec.shape:
            raise RuleError(
                four_parts(
                    asked=f"{call.op} to change the shape of {spec.text} in place",
                    found=f"a result of shape {tuple(call.outputs[result].shape)}",
                    why="a DTensor keeps its global shape for life",
                    hint="use the operator's out-of-place form",
                )
            )
        number = call.number_at(place) if isinstance(place, int) else None
        fixed[result] = Fixed(number, spec.placements)
    return fixed


def _warn_missing(op: OpOverload) -> None:
    warnings.warn(
        f"{op} has no sharding rule: its arguments are gathered and it runs on whole tensors",
        MissingRuleWarning,
        stacklevel=2,
    )


def _redistribute(
    entry: Entry,
    cls: type[torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    local: list[Any],
    local_kwargs: dict[str, Any],
) -> None:
    """Bring the local arguments to their decided layouts; a tensor given twice moves once."""
    moves = {number: (plan, cause) for number, plan, cause in entry.moves}
    done: dict[tuple[int, int], torch.Tensor] = {}
    counter = iter(range(1 << 30))
    mesh = _first_mesh(cls, args, kwargs)

    def moved(given: Any, value: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [moved(g, v) for g, v in zip(given, value, strict=True)]
        if not isinstance(given, torch.Tensor):
            return value
        number = next(counter)
        if number not in moves:
            return value
        plan, cause = moves[number]
        again = (id(given), id(plan))
        if again not in done:
            spec = getattr(given, "_spec", None)
            if spec is None:
                meta = TensorMeta(given.shape, given.stride(), given.dtype)
                spec = Spec(mesh, (Replicate(),) * mesh.ndim, meta)
            done[again] = execute(value, spec, plan, cause)
        return done[again]

    for position, given in enumerate(args):
        local[position] = moved(given, local[position])
    for name, given in kwargs.items():
        if name not in entry.written:
            local_kwargs[name] = moved(given, local_kwargs[name])


def _wrap(
    cls: type[torch.Tensor],
    entry: Entry,
    result: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """DTensors for local results; what was written in place is the argument itself."""
    if entry.returns_nothing:
        return None
    if entry.written:
        places = [args[p] if isinstance(p, int) else kwargs[p] for p in entry.written]
        return places[0] if len(places) == 1 else tuple(places)
    if entry.outputs is None:
        return tree_map_only(torch.Tensor, lambda t: _whole(cls, t, args, kwargs), result)
    specs = iter(entry.outputs)

    def wrap(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _new(cls, value, next(specs), requires_grad=False)
        return value

    if isinstance(result, (list, tuple)):
        return type(result)([wrap(value) for value in result])
    return wrap(result)


def _whole(
    cls: type[torch.Tensor], local: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor:
    """A result whose shape only its data decides: whole on every rank."""
    mesh = _first_mesh(cls, args, kwargs)
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    return _new(cls, local, Spec(mesh, (Replicate(),) * mesh.ndim, meta), requires_grad=False)


def forget_meshes() -> None:
    """Drop all cached decisions and interned specs.

    For a process that destroys its process groups and makes others: a mesh made anew equals its
    predecessor, whose groups are gone, and must not be answered with what was cached for it.
    """
    _cache.clear()
    Spec._interned.clear()
