"""List operators (`_foreach_*`, `_fused_*`): one decision per element, one call for all.

Each element is decided as a call of its own, of the plain operator that `_foreach_` stands for, or
of the fused operator. Elements may therefore differ in layout and mesh, and tensors written in
place keep their layouts. The local lists then go through the list operator in one call. Used by
`make_entry`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, converted
from dtensor_core.dispatch.metadata.corrections import as_meta
from dtensor_core.dispatch.metadata.output_metadata import output_metadata
from dtensor_core.operators.kernels.local_operator import local_operator
from dtensor_core.operators.rules.call import Call, tensors
from dtensor_core.placement import Replicate
from dtensor_core.propagate import Decision, Fixed, decide
from dtensor_core.redistribute.plan import Plan
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload, resolve_overload
from dtensor_core.torch_internals.trees import tree_flatten, tree_unflatten

_FOREACH = "aten::_foreach_"
_FUSED = ("aten::_fused_", "aten::_amp_foreach_")
# Plain operators whose name differs from that of the `_foreach_` form, and those for a number where
# the plain operator of that name takes tensors only.
_RENAMED = {"norm": "linalg_vector_norm", "powsum": "linalg__powsum"}
_OF_NUMBER = {"maximum": "clamp_min", "minimum": "clamp_max"}
# Positions of scalars that the plain operator takes by keyword, `value`.
_KEYWORDS = {name: 3 for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")}


@dataclass(frozen=True, slots=True)
class Element:
    """One element's call and its decision.

    Attributes:
        call: The call of the plain or fused operator.
        numbers: The numbers of its tensors in the call of the list operator.
        fixed: The arguments it writes in place.
        decision: The decision of the call.
        is_plain: True if it has no DTensor.
    """

    call: Call
    numbers: tuple[int, ...]
    fixed: tuple[Fixed, ...]
    decision: Decision
    is_plain: bool = False


@lru_cache(maxsize=4096)
def is_list_operator(op: OpOverload) -> bool:
    """True for operators whose first argument is a list of independent elements."""
    arguments = op._schema.arguments
    named = op._schema.name.startswith((_FOREACH, *_FUSED))
    return named and bool(arguments) and str(arguments[0].type) == "List[Tensor]"


def any_element_mixes(args: Args, kwargs: Kwargs, cls: type[torch.Tensor]) -> bool:
    """True if plain tensors with more than one element meet DTensors in an element of the lists."""
    values = [*args, *kwargs.values()]
    lists = [value for value in values if isinstance(value, (list, tuple))]
    shared = [value for value in values if isinstance(value, torch.Tensor)]
    for element in itertools.zip_longest(*lists):
        kinds = {
            isinstance(each, cls)
            for each in (*element, *shared)
            if isinstance(each, cls) or (isinstance(each, torch.Tensor) and each.numel() != 1)
        }
        if len(kinds) > 1:
            return True
    return False


def decide_elements(
    op: OpOverload, args: Args, kwargs: Kwargs, written: Sequence[int | str], plain: Collection[int]
) -> list[Element]:
    """Decide every element of a list operator.

    Args:
        op: The list operator.
        args: Its arguments, with specs for tensors.
        kwargs: Its keyword arguments, with specs for tensors.
        written: The arguments that it writes to.
        plain: The numbers of plain tensors; each is replicated on the mesh of its element.

    Raises:
        RuleError: An element can't be decided.
    """
    length = max((len(arg) for arg in args if isinstance(arg, (list, tuple))), default=0)
    counted = iter(range(1 << 30))
    numbers = converted(Spec, lambda _: next(counted), args, kwargs)
    return [
        _element(op, index, (list(args), dict(kwargs)), numbers, written, plain)
        for index in range(length)
    ]


def _element(
    op: OpOverload,
    index: int,
    given: Any,
    numbers: Any,
    written: Sequence[int | str],
    plain: Collection[int],
) -> Element:
    args, kwargs = (_at(part, index) for part in given)
    number_args, number_kwargs = (_at(part, index) for part in numbers)
    if plain:
        args, kwargs = _on_one_mesh((args, kwargs), (number_args, number_kwargs), plain)
    specs = tuple(tensors((*args, *kwargs.values())))
    held = [*number_args, *number_kwargs.values()]
    given_specs = [*args, *kwargs.values()]
    mine = tuple(n for n, spec in zip(held, given_specs, strict=True) if isinstance(spec, Spec))
    if op._schema.name.startswith(_FUSED):
        places = [p for p in written if isinstance(p, int) and _stays(op, p, args[p])]
        outputs = tuple(args[place].tensor_meta for place in places)
        call = Call(op, tuple(args), kwargs, specs, outputs)
    else:
        places = [0] if op._schema.is_mutable else []
        call = _plain_call(op, args, kwargs, specs)
    fixed = tuple(
        Fixed(number, args[place].placements, result)
        for result, place in enumerate(places)
        if (number := call.number_at(place)) is not None
    )
    is_plain = all(number in plain for number in mine)
    return Element(call, mine, fixed, decide(call, fixed), is_plain)


def _on_one_mesh(given: Any, numbers: Any, plain: Collection[int]) -> Any:
    """Return an element's arguments, with plain tensors replicated on the mesh of the others."""
    leaves, structure = tree_flatten(given)
    counted = tree_flatten(numbers)[0]
    alone = [
        isinstance(leaf, Spec) and number in plain
        for leaf, number in zip(leaves, counted, strict=True)
    ]
    meshes = (
        leaf.mesh
        for leaf, is_plain in zip(leaves, alone, strict=True)
        if isinstance(leaf, Spec) and not is_plain
    )
    mesh = next(meshes, None)
    if mesh is None:
        return given
    full = (Replicate(),) * mesh.ndim
    return tree_unflatten(
        [
            Spec(mesh, full, leaf.tensor_meta) if is_plain else leaf
            for leaf, is_plain in zip(leaves, alone, strict=True)
        ],
        structure,
    )


def _stays(op: OpOverload, place: int, value: Any) -> bool:
    """True for parameters and their state; gradients may move, and step counts are replicated."""
    name = op._schema.arguments[place].name
    return isinstance(value, Spec) and name not in ("grads", "state_steps", "found_inf")


def _at(part: Any, index: int) -> Any:
    """Return the arguments of an element: its item of every list, and all else unchanged."""
    if isinstance(part, dict):
        return {name: _share(value, index) for name, value in part.items()}
    return [_share(value, index) for value in part]


def _share(value: Any, index: int) -> Any:
    if isinstance(value, (list, tuple)):
        # A list that is not used is empty, such as max_exp_avg_sqs of Adam without amsgrad.
        return value[index] if value else None
    return value


def _plain_call(
    op: OpOverload, args: list[Any], kwargs: dict[str, Any], specs: tuple[Spec, ...]
) -> Call:
    """Return the call of the plain operator that an element of a `_foreach_` call stands for."""
    name = op._schema.name.removeprefix(_FOREACH)
    name = _RENAMED.get(name, name)
    stem = name.removesuffix("_")
    if stem in _OF_NUMBER and not isinstance(args[1], Spec):
        name = name.replace(stem, _OF_NUMBER[stem])
    if not hasattr(torch.ops.aten, name):  # no in-place form: the other one has the same layouts
        name = name.removesuffix("_")
    place = _KEYWORDS.get(name)
    if place is not None and len(args) > place:
        *args, value = args
        kwargs = {**kwargs, "value": value} if not isinstance(value, Spec) else kwargs
    metas, _ = converted(Spec, as_meta, args, {})
    overload = resolve_overload(f"aten::{name}", *metas, **kwargs)
    plain = getattr(getattr(torch.ops.aten, name), overload)
    return Call(plain, tuple(args), kwargs, specs, output_metadata(plain, args, kwargs) or ())


def plans_by_number(elements: Sequence[Element]) -> dict[int, tuple[Plan, Decision]]:
    """Map the number of every tensor that moves to its plan and the decision that it is part of."""
    return {
        number: (plan, element.decision)
        for element in elements
        for number, plan in zip(element.numbers, element.decision.plans, strict=True)
        if plan.steps
    }


def local_list_operator(op: OpOverload, elements: Sequence[Element]) -> Callable[..., Any]:
    """Return the list operator, or a loop if the rule of an element has its own local operator."""
    runs = [
        local_operator(
            e.call.op,
            e.decision.rule and e.decision.rule.local,
            e.decision.inputs,
            e.decision.outputs,
        )
        for e in elements
    ]
    if all(run is element.call.op for run, element in zip(runs, elements, strict=True)):
        return op
    base = op._schema.name.removeprefix(_FOREACH)
    positional = _KEYWORDS.get(base)
    writes = op._schema.is_mutable

    def each(*args: Any, **kwargs: Any) -> list[Any]:
        results = []
        for index, (run, element) in enumerate(zip(runs, elements, strict=True)):
            mine, named = _at(args, index), _at(kwargs, index)
            if positional is not None and len(mine) > positional:
                named["value"] = mine.pop()
            result = run(*mine, **named)
            # An operator without an in-place form (see `_plain_call`) returns the values.
            if writes and not element.call.op._schema.is_mutable and result.numel():
                mine[0].copy_(result)
            results.append(result)
        return results

    return each
