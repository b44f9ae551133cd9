"""The hot path: unwrap, look up, (redistribute), run the local operator, wrap.

A call is looked up by a key of its operator, the interned specs of its tensors and its static
arguments. Scalars count by type only, so that a scalar that changes every step does not grow the
cache. Zero and non-finite scalars count by value, since partial sums don't pass them. A miss asks
`make_entry` once. `dispatch` is the `__torch_dispatch__` of DTensors; a cached call runs it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dtensor_core import observe
from dtensor_core.dispatch import results, shape_generic_cache
from dtensor_core.dispatch.arguments import Args, Kwargs
from dtensor_core.dispatch.cache import CACHE, MOST_ENTRIES
from dtensor_core.dispatch.entry import DecomposedCall, Entry, PlainCall, ViewCall
from dtensor_core.dispatch.make_entry import make_entry
from dtensor_core.dispatch.redistribute_arguments import redistribute_arguments
from dtensor_core.dispatch.results import FINISH, from_first, observed
from dtensor_core.dispatch.special.contexts import (
    implicit_replication,
    is_replicating,
    is_rewriting,
    rewrites,
)
from dtensor_core.dispatch.special.fallback import refuse_collective
from dtensor_core.dispatch.special.materialized_views import check_writable, write_through
from dtensor_core.dispatch.special.mixed_tensors import is_replicated_plain, refuse_mixed
from dtensor_core.dispatch.special.storage_offset import BY_POSITION, offset_of
from dtensor_core.dispatch.special.torch_dtensor import adopted_arguments, is_torch_dtensor
from dtensor_core.operators.kernels.local_operator import argument_names
from dtensor_core.operators.rules.call import is_value
from dtensor_core.operators.table import row_of
from dtensor_core.torch_internals.dispatcher import COMPOSITE_IMPLICIT, OpOverload
from dtensor_core.torch_internals.tensors import new_dtensor
from dtensor_core.tracing import no_modes, numbers, settled, untraced

_SCALARS = frozenset((int, float, bool, complex))
_INTEGERS = frozenset((int,))

# The parts of the cache that a cached call reads.
_entries = CACHE.entries
_value_arguments = CACHE.value_arguments
# The DTensor class, set by `install`, which `tensor` calls.
_class: type[Any] = torch.Tensor


def install(cls: type[torch.Tensor], stand_ins: Mapping[str, Callable[..., Any]]) -> None:
    """Route operators on tensors of class `cls` here; `stand_ins` replace some of them."""
    global _class
    _class = cls
    results.install(cls)
    CACHE.stand_ins.update(stand_ins)
    cls.__torch_dispatch__ = staticmethod(dispatch)  # pyright: ignore


@untraced
def dispatch(
    op: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run an operator with at least one DTensor argument.

    Raises:
        MixedTensorError: A plain tensor of unknown layout meets a DTensor.
        MeshError: The arguments are on different meshes.
        RuleError: The call can't be decided.

    All of these are raised before anything is communicated or written.
    """
    op_id = id(op)
    # The cheapest test comes first: without rewrites, the hot path pays for an empty dict only.
    if rewrites and op_id in rewrites and is_rewriting():
        result = observed(op, rewrites[op_id], args, kwargs or {})
        if result is not NotImplemented:
            return result
    key: list[Any] = [op_id]
    local: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is _class:
            key.append(arg._spec)
            local.append(arg._local_tensor)
        elif kind in _SCALARS:
            if (op_id, len(key)) in _value_arguments:
                # This is `counted_as` without its call. The difference is 0 for finite numbers
                # alone; unlike math.isfinite, it accepts complex numbers and integers of any size.
                key.append(kind if arg and arg - arg == 0 else _singular(arg))
            else:
                key.append(arg)
            local.append(arg)
        elif kind is list:
            _list(op, len(key), arg, key, local)
        else:
            _other(op, len(key), arg, key, local)
    local_kwargs = _named(op, kwargs, key) if kwargs else {}
    try:
        entry = _entries.get(tuple(key))
    except TypeError:  # symbolic numbers have no hash, and torch's DTensors no key
        return dispatch(op, types, *_settled(args, kwargs or {}))
    if entry is None:
        if op_id not in CACHE.known_operators:
            # The key is made anew, as `_learn` may let scalars of this operator count by type.
            _learn(op)
            return dispatch(op, types, args, kwargs)
        if op_id in BY_POSITION:
            key.append(offset_of(op, args))
            entry = _entries.get(tuple(key))
        # Replaced operators never become entries, so that a cached call does not look here.
        if op_id in CACHE.replacements:
            return observed(op, CACHE.replacements[op_id], args, kwargs or {})
        entry = entry or CACHE.entries_by_value.get(tuple(key))
        entry = entry or _miss(op, args, kwargs or {}, tuple(key))
        if type(entry.kind) is DecomposedCall:
            with implicit_replication():  # for the tensors that it makes
                return observed(op, entry.run, args, kwargs or {})
    single, place, copied = entry.single, None, None
    if single is None:
        place = entry.place
        copied = None if place is None else args[place]._copied
        if copied is not None:
            # Before the operator runs: a write that cannot reach the base must not happen at all.
            check_writable(copied)
    if entry.is_moved:
        observed(
            op, redistribute_arguments, (op, entry, args, kwargs or {}, local, local_kwargs), {}
        )
    runner = observe.runner
    if runner is not None:
        result = runner(op, entry.run, local, local_kwargs)
    else:
        result = entry.run(*local, **local_kwargs) if kwargs else entry.run(*local)
    if single is not None:
        if entry.may_be_part and result.storage_offset():
            return from_first(_class, result, single)
        return new_dtensor(_class, result, single, False)
    alias = entry.alias
    # A base that is a copy itself has another class.
    if alias is not None and type(args[0]) is _class and not torch.is_inference_mode_enabled():
        offset = args[0].storage_offset() + entry.offset
        if offset or result.storage_offset():
            return from_first(_class, result, alias, False, offset)
        return new_dtensor(_class, result, alias, False)
    if place is not None:
        if copied is not None:
            write_through(copied, op, args)
        return args[place]
    kind = entry.kind
    return FINISH[type(kind)](op, kind, result, args, kwargs or {}, local, local_kwargs)


def _settled(args: Args, kwargs: Kwargs) -> tuple[Any, Mapping[str, Any]]:
    """Make arguments hashable: adopt torch's DTensors, and settle symbolic numbers."""
    return adopted_arguments(args, kwargs, _class) or numbers(args, kwargs)


def _singular(number: Any) -> tuple[type, str]:
    """Return the key of zero, an infinity or nan; by kind, since no nan equals another."""
    return type(number), "not finite" if number else "zero"


def counted_as(number: Any) -> Any:
    """Return the key of a number whose value does not matter: its type, unless it is singular."""
    return type(number) if number and number - number == 0 else _singular(number)


def _named(op: OpOverload, kwargs: Kwargs, key: list[Any]) -> dict[str, Any]:
    """Return the local keyword arguments, adding each to the key with its name."""
    local_kwargs: dict[str, Any] = {}
    for name, arg in kwargs.items():
        key.append(name)
        if type(arg) in _SCALARS and (id(op), name) in _value_arguments:
            key.append(counted_as(arg))
            local_kwargs[name] = arg
        else:
            value: list[Any] = []
            _other(op, name, arg, key, value)
            local_kwargs[name] = value[0]
    return local_kwargs


def _list(
    op: OpOverload, place: int | str, arg: Sequence[Any], key: list[Any], local: list[Any]
) -> None:
    """Add a list to the key and the local arguments; `place` is its position or its name."""
    by_type = (id(op), place) in _value_arguments
    # Most lists are sizes or dims, of plain integers: they need no work per element.
    if not by_type and _INTEGERS.issuperset(map(type, arg)):
        key.append(tuple(arg))
        local.append(arg)
        return
    inner_key: list[Any] = []
    inner: list[Any] = []
    for each in arg:
        kind = type(each)
        if kind is _class:
            inner_key.append(each._spec)
            inner.append(each._local_tensor)
        elif kind in _SCALARS:
            inner_key.append(counted_as(each) if by_type else each)
            inner.append(each)
        else:
            _other(op, place, each, inner_key, inner)
    key.append(tuple(inner_key))
    local.append(inner)


def _other(op: OpOverload, place: int | str, arg: Any, key: list[Any], local: list[Any]) -> None:
    """Add a value that is neither a DTensor nor a positional scalar to key and local arguments."""
    if isinstance(arg, _class):
        # A positional argument gets here only if it is a copied view, since its subclass fails the
        # exact type tests of `dispatch`.
        if arg._copied is not None:
            arg._copied.renew()
        key.append(arg._spec)
        local.append(arg._local_tensor)
    elif isinstance(arg, (list, tuple)):
        _list(op, place, arg, key, local)
    elif isinstance(arg, torch.Tensor):
        if type(arg) is not torch.Tensor and is_torch_dtensor(arg):
            # A list has no hash: the look-up raises TypeError, and `dispatch` adopts the tensor.
            key.append([arg])
            return
        full = is_replicated_plain(op, arg) or is_replicating()
        shape, stride = settled(arg.shape), settled(arg.stride())
        key.append((torch.Tensor if full else None, shape, stride, arg.dtype))
        local.append(arg)
    else:
        key.append(_hashable(arg))
        local.append(arg)


def _hashable(arg: Any) -> Any:
    if type(arg) is torch.Generator:  # no layout depends on which; a key would keep it alive
        return torch.Generator
    if type(arg) is torch.SymFloat:  # hashable, but hashing it would prevent tracing
        return [arg]
    return _Same(arg) if type(arg).__hash__ is None else arg


class _Same:
    """Key of an object without a hash: equal for that object alone, which it keeps alive.

    The id of an object that is gone may be reused by another.
    """

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def _learn(op: OpOverload) -> None:
    """Record which arguments of an operator are scalars whose values don't affect layouts.

    Also records its replacement: a stand-in, or for a composite without a row its decomposition.
    Such composites arrive here in inference mode.
    """
    for position, argument in enumerate(op._schema.arguments):
        if is_value(argument):
            # By its position in a key, and by its name.
            _value_arguments.update(((id(op), position + 1), (id(op), argument.name)))
    if row_of(op) is None and op.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT):
        CACHE.replacements[id(op)] = op.decompose
    if op.name() in CACHE.stand_ins:
        CACHE.replacements[id(op)] = CACHE.stand_ins[op.name()]
    CACHE.known_operators.add(id(op))


def _miss(op: OpOverload, args: Args, kwargs: Kwargs, key: tuple[Any, ...]) -> Entry:
    """Decide a call not seen before, at these sizes or at others, and cache it.

    If the decision depends on a number, only the calls of this key are looked up by its value too.
    A call that mixes DTensors with plain tensors is refused here and never becomes an entry. A call
    that `implicit_replication` allowed has a key of its own.
    """
    names = CACHE.deciding_numbers.get(key)
    if names is not None:
        entry = CACHE.entries_by_value.get(_by_value(key, op, names, args, kwargs))
        if entry is not None:
            return entry
    else:
        entry = shape_generic_cache.entry_of(key)
        if entry is not None:
            return _kept(_entries, key, entry)
    refuse_collective(op)
    if not is_replicating():
        refuse_mixed(op, args, kwargs, _class)
    with no_modes():
        entry = make_entry(op, args, kwargs)
    numbers = [name for name in entry.read if (id(op), name) in _value_arguments]
    # Those of before too: the numbers that a rule reads may depend on the values of others.
    names = tuple(sorted({*(names or ()), *numbers}))
    if names:
        _kept(CACHE.deciding_numbers, key, names)
        return _kept(CACHE.entries_by_value, _by_value(key, op, names, args, kwargs), entry)
    if type(entry.kind) is DecomposedCall:
        return _kept(CACHE.entries_by_value, key, entry)
    if isinstance(entry.kind, (PlainCall, ViewCall)) and entry.kind.is_sizeless:
        shape_generic_cache.keep(key, entry)
    return _kept(_entries, key, entry)


def _kept(cache: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> Any:
    """Add a value to a cache, which drops its oldest entry if it is full."""
    if len(cache) >= MOST_ENTRIES:
        del cache[next(iter(cache))]
    cache[key] = value
    return value


def _by_value(
    key: tuple[Any, ...], op: OpOverload, names: Sequence[str], args: Args, kwargs: Kwargs
) -> tuple[Any, ...]:
    """Return the key of a call with the values of these numbers."""
    places = argument_names(op)
    values: list[Any] = []
    for name in names:
        place = places[name]
        value = args[place] if place < len(args) else kwargs.get(name)
        # Text, since no nan equals another one, and a list has no hash.
        values.append(
            repr(value) if isinstance(value, (int, float, complex, list, tuple)) else None
        )
    return (*key, *values)
