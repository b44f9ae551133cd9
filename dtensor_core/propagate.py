"""Sharding propagation: the placements of a call's arguments and results.

`decide` visits the mesh axes from the first to the last. On each it takes the cheapest candidate
that the operator's rule offers; the cost is the planner's for redistributing every argument. If
something has to move, the cost of reducing the resulting Partials counts too. If no argument is
sharded along the axis, no result becomes sharded, since leaving half of the work to the consumer of
the result saves nothing. `decide` reads global metadata only, so every rank decides alike.
`dispatch` caches the decision; nothing here runs on a cached call.

The file exceeds the usual length, to keep the choice on an axis and the costs it compares together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dtensor_core.errors import MeshError, RuleError
from dtensor_core.mesh import axis_name
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.rule_builders import replicated_rule
from dtensor_core.operators.rules.sharding_rule import (
    Candidate,
    Form,
    ShardingRule,
    candidates,
    remaining_sizes,
)
from dtensor_core.operators.table import rule_of
from dtensor_core.placement import Partial, Placement, Replicate, Shard
from dtensor_core.redistribute.cost import Topology, topology_of
from dtensor_core.redistribute.halo_exchange import Exchange
from dtensor_core.redistribute.partial_combine import Merge
from dtensor_core.redistribute.plan import EMPTY, Placements, Plan, plan
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload

_REPLICATE = Replicate()


@dataclass(frozen=True, slots=True)
class Fixed:
    """An argument that is written in place and should keep its layout.

    Attributes:
        whose: The number of the tensor argument.
        placements: Its placements.
        result: The number of the result that it is returned as; None if it is not returned.
    """

    whose: int
    placements: Placements
    result: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The layout of every tensor argument and result of a call, and the plans of the arguments.

    Attributes:
        rule: The rule of the call, if any.
        inputs: The layouts of the arguments.
        plans: The plan of each argument to its layout.
        outputs: The layouts of the results.
        considered: The candidates of the axes where something had to move, cheapest first, each
            with its cost in seconds, and with the name of its axis if there are several.
        exchanges: The exchanges of the candidates chosen.
        sizeless: True if the decision is the same for all sizes with a rule of the same form.
    """

    rule: ShardingRule | None
    inputs: tuple[Spec, ...]
    plans: tuple[Plan, ...]
    outputs: tuple[Spec, ...]
    considered: tuple[tuple[str, float], ...]
    exchanges: tuple[Exchange | Merge, ...] = ()
    sizeless: bool = False

    @property
    def communicates(self) -> bool:
        """True if any argument has to be communicated."""
        return any(each.communicates for each in self.plans)

    @property
    def lacks_rule(self) -> bool:
        """True if arguments have to be communicated because there is no rule."""
        return self.rule is None and self.communicates


def decide(call: Call, fixed: Sequence[Fixed]) -> Decision:
    """Return the cheapest decision for a call; `fixed` are the arguments that it writes in place.

    These keep their layouts if the rule allows it. Otherwise they are written in another layout and
    redistributed back, see `dispatch.special.inplace_writeback`.

    Raises:
        MeshError: The arguments are on different meshes.
        RuleError: A written argument can't be redistributed back.
    """
    mesh = _common_mesh(call)
    rule = rule_of(call)
    if rule is not None and rule.sizes and not call.outputs and _returns_tensors(call.op):
        rule = None  # the shapes hold for full tensors only: they depend on data, or on the kernel
    full = rule or replicated_rule(call)
    placements = tuple([spec.placements for spec in call.specs])
    exchanges = any([each.exchange is not None for each in full.extra])
    unmoved = None if exchanges else _unmoved(full.form, placements, tuple(fixed))
    if unmoved is not None:
        outputs = tuple([Spec(mesh, unmoved[n], meta) for n, meta in enumerate(call.outputs)])
        plans = (EMPTY,) * len(call.specs)
        return Decision(rule, call.specs, plans, outputs, (), sizeless=not full.extra)
    costs = _Costs(call, topology_of(mesh))
    chosen: list[Candidate] = []
    considered: list[tuple[str, float]] = []
    sizes = full.sizes
    for axis, ranks in enumerate(costs.mesh.shape):
        candidate, ranked = _choose(costs, full, sizes, axis, ranks, fixed, chosen)
        chosen.append(candidate)
        prefix = f"{axis_name(mesh, axis)}: " if ranked and mesh.ndim > 1 else ""
        considered += [(prefix + text, seconds) for text, seconds in ranked]
        sizes = remaining_sizes(full, sizes, candidate.sharding, ranks)
    layouts = [
        tuple([candidate.inputs[number] for candidate in chosen])
        for number in range(len(call.specs))
    ]
    plans = tuple([costs.plan_of(number, layout) for number, layout in enumerate(layouts)])
    inputs = tuple([_laid_out(*each) for each in zip(call.specs, layouts, strict=True)])
    outputs = tuple(
        [
            Spec(mesh, tuple([candidate.outputs[number] for candidate in chosen]), meta)
            for number, meta in enumerate(call.outputs)
        ]
    )
    exchanges = tuple([each.exchange for each in chosen if each.exchange is not None])
    return Decision(rule, inputs, plans, outputs, tuple(considered), exchanges)


@lru_cache(maxsize=4096)
def _returns_tensors(op: OpOverload) -> bool:
    return any("Tensor" in str(each.type) for each in op._schema.returns)


@lru_cache(maxsize=16384)
def _unmoved(
    form: Form, placements: tuple[Placements, ...], fixed: tuple[Fixed, ...]
) -> tuple[Placements, ...] | None:
    """Return the results' placements if no argument has to move, independent of sizes.

    Returns None if an argument has to move, or if sizes matter. Most calls of a program share a few
    forms, which are decided here once for all shapes.
    """
    rule = ShardingRule.of_form(form)
    strided = any([p.num_blocks != 1 for each in placements for p in each])
    if strided or not rule.has_sizeless_form:
        return None
    chosen: list[Candidate] = []
    for axis, present in enumerate(zip(*placements, strict=True)):
        staying = [
            each
            # Candidates of this form don't depend on the number of ranks; 1 stands for all.
            for each in _offered(rule, rule.sizes, 1, present, chosen)
            if _same(each.inputs, present)
            and all([_keeps(each, written, axis) for written in fixed])
        ]
        if not staying:
            return None
        chosen.append(staying[0])
    return tuple(zip(*[each.outputs for each in chosen], strict=True))


def _same(some: Sequence[Placement], others: Sequence[Placement]) -> bool:
    return all(map(operator.is_, some, others))


def _laid_out(spec: Spec, placements: Placements) -> Spec:
    """Return the spec with these placements; usually it has them already."""
    if _same(spec.placements, placements):
        return spec
    return spec.with_placements(placements)


def _common_mesh(call: Call):
    mesh = call.specs[0].mesh
    for spec in call.specs:
        if spec.mesh is not mesh and spec.mesh != mesh:
            raise MeshError(
                f"{call.op} on inputs with different meshes",
                found=f"{mesh} and {spec.mesh}",
                why="an operator runs on the ranks of a single mesh",
                hint="redistribute the tensors to a common mesh first",
            )
    return mesh


class _Costs:
    """The costs of a call: each is computed once, however many candidates share it."""

    def __init__(self, call: Call, mesh: Topology) -> None:
        self.call, self.mesh = call, mesh
        self._plans: dict[tuple[int, int, Placement], Plan] = {}

    def plan_of(self, number: int, target: Placements) -> Plan:
        """Return the plan of an argument to other placements."""
        spec = self.call.specs[number]
        if _same(spec.placements, target):
            return EMPTY
        return plan(spec.placements, target, spec.shape, spec.dtype.itemsize, self.mesh)

    def moves(self, axis: int, inputs: Placements) -> list[Plan]:
        """Return the plans of the arguments that a candidate redistributes along an axis."""
        found: list[Plan] = []
        for number, placement in enumerate(inputs):
            placements = self.call.specs[number].placements
            if placement is placements[axis]:
                continue
            key = axis, number, placement
            if key not in self._plans:
                target = (*placements[:axis], placement, *placements[axis + 1 :])
                self._plans[key] = self.plan_of(number, target)
            found.append(self._plans[key])
        return found

    def pending_seconds(self, axis: int, outputs: Placements, *, full: bool) -> float:
        """Return the cost of reducing Partial results.

        They are reduced to replicas if `full`, and otherwise to shards. A scalar can't be sharded;
        it is charged half of an all-reduce, the share of a reduce-scatter.
        """
        total = 0.0
        unsharded = (_REPLICATE,) * len(self.mesh.shape)
        for placement, meta in zip(outputs, self.call.outputs, strict=True):
            if placement.letter == "P":
                ended = _REPLICATE if full or not meta.shape else Shard(_longest_dim(meta.shape))
                source = (*unsharded[:axis], placement, *unsharded[axis + 1 :])
                target = (*unsharded[:axis], ended, *unsharded[axis + 1 :])
                found = plan(source, target, meta.shape, meta.dtype.itemsize, self.mesh)
                total += found.seconds / 2 if not meta.shape else found.seconds
        return total


def _choose(
    costs: _Costs,
    rule: ShardingRule,
    sizes: Mapping[str, int],
    axis: int,
    ranks: int,
    fixed: Sequence[Fixed],
    chosen: Sequence[Candidate],
) -> tuple[Candidate, list[tuple[str, float]]]:
    """Return the cheapest candidate on an axis, and the ranking of candidates if it has a cost.

    `chosen` are the candidates of the axes before.
    """
    specs = costs.call.specs
    present = tuple([spec.placements[axis] for spec in specs])
    offered = [
        each
        for each in _offered(rule, sizes, ranks, present, chosen)
        if each.exchange is None or each.exchange.axis == axis
    ]
    if _is_compared(costs.call):
        offered = _reduced_alike(offered, present)
    allowed: list[Candidate] = []
    for candidate in offered:
        if all([_keeps(candidate, each, axis) for each in fixed]):
            if _same(candidate.inputs, present) and not _exchange_seconds(specs, candidate):
                return candidate, []
            allowed.append(candidate)
    if not allowed:
        allowed = [
            candidate
            for candidate in offered
            if all([_comes_back(candidate, each, axis) for each in fixed])
        ]
    if not allowed:
        raise _cannot_keep(costs.call, rule, axis, ranks, sizes, fixed)
    unsharded = all([placement.sharded_dim is None for placement in present])
    if unsharded:
        allowed = _without_new_shards(allowed)
    moves = [costs.moves(axis, candidate.inputs) for candidate in allowed]
    within = [_exchange_seconds(specs, candidate) for candidate in allowed]
    seconds = [
        sum([plan.seconds for plan in plans]) + own
        for plans, own in zip(moves, within, strict=True)
    ]
    sends = [  # slicing a replica is local
        own > 0 or any([plan.communicates for plan in plans])
        for plans, own in zip(moves, within, strict=True)
    ]
    if all(sends):
        seconds = [
            moved + costs.pending_seconds(axis, candidate.outputs, full=unsharded)
            for moved, candidate in zip(seconds, allowed, strict=True)
        ]
    # Sorting is stable: of equal costs, every rank takes the candidate that was offered first.
    ranked = sorted(range(len(allowed)), key=seconds.__getitem__)
    texts = [_text(each.inputs, each.outputs) for each in allowed]
    return allowed[ranked[0]], [(texts[index], seconds[index]) for index in ranked]


def _is_compared(call: Call) -> bool:
    """True for equality, and for extremes, whose gradients ask which elements equal the result."""
    name = call.op._schema.name
    if name == "aten::linalg_vector_norm":
        return math.isinf(call.argument("ord", 2))
    return name in _COMPARED


_EXTREMES = ("amax", "amin", "aminmax", "max", "min", "median", "nanmedian")
_COMPARED = frozenset("aten::" + name for name in ("eq", *_EXTREMES))


def _reduced_alike(
    offered: Sequence[Candidate], present: Sequence[Placement]
) -> Sequence[Candidate]:
    """Return the candidates with sums reduced to replicas.

    Rounding depends on the collective. If an extreme reduced its argument by a reduce-scatter, and
    its gradient by an all-reduce, no element might equal the result, and the gradient would be nan.
    """
    pending = [n for n, each in enumerate(present) if each.is_partial() and not _is_extreme(each)]
    return [c for c in offered if all(c.inputs[n].is_replicate() for n in pending)] or offered


def _is_extreme(placement: Placement) -> bool:
    return placement.is_partial("max") or placement.is_partial("min")


def _offered(
    rule: ShardingRule,
    sizes: Mapping[str, int],
    ranks: int,
    present: Sequence[Placement],
    chosen: Sequence[Candidate],
) -> list[Candidate]:
    """Return a rule's candidates for an axis, given the choices on the axes before."""
    return [
        candidate
        for candidate in candidates(rule, sizes, ranks, present)
        if all([_reduces_alike(candidate, before) for before in chosen])
    ]


def _exchange_seconds(specs: Sequence[Spec], candidate: Candidate) -> float:
    """Return the cost of the communication within the operator."""
    exchange = candidate.exchange
    return 0.0 if exchange is None else exchange.seconds(specs)


def _reduces_alike(candidate: Candidate, before: Candidate) -> bool:
    """True if no tensor has non-commuting reductions on two axes."""
    pairs = zip(
        (*candidate.inputs, *candidate.outputs), (*before.inputs, *before.outputs), strict=True
    )
    return all(
        [
            one is other
            or not (isinstance(one, Partial) and isinstance(other, Partial))
            or {one.reduce_op, other.reduce_op} == {"sum", "avg"}
            for one, other in pairs
        ]
    )


def _keeps(candidate: Candidate, each: Fixed, axis: int) -> bool:
    """True if a written argument keeps its placement on this axis."""
    placement = each.placements[axis]
    return all([now is placement for now in _placements_of(candidate, each)])


def _comes_back(candidate: Candidate, each: Fixed, axis: int) -> bool:
    """True if an argument written in another layout can be redistributed back.

    A pending reduction must be written as its full value.
    """
    found = _placements_of(candidate, each)
    if each.placements[axis].is_partial():
        return all(now.is_replicate() for now in found)
    return found[0] is found[-1] and not found[0].is_partial()


def _placements_of(candidate: Candidate, each: Fixed) -> list[Placement]:
    """Return a candidate's placements of a written argument, as argument and as result."""
    found = [candidate.inputs[each.whose]]
    return found if each.result is None else [*found, candidate.outputs[each.result]]


def _without_new_shards(allowed: list[Candidate]) -> list[Candidate]:
    """Return the candidates that shard no result, replicated results first.

    Returns all candidates if each shards a result.
    """
    unsharded = [
        candidate
        for candidate in allowed
        if all([placement.sharded_dim is None for placement in candidate.outputs])
    ]
    return sorted(unsharded, key=_num_partial) or allowed


def _num_partial(candidate: Candidate) -> int:
    return sum([placement is not _REPLICATE for placement in candidate.outputs])


def _longest_dim(shape: Sequence[int]) -> int:
    return max(range(len(shape)), key=shape.__getitem__)


@lru_cache(maxsize=16384)
def _text(inputs: Placements, outputs: Placements) -> str:
    before, after = (", ".join([each.text for each in side]) for side in (inputs, outputs))
    return f"{before} -> {after}"


def _cannot_keep(
    call: Call,
    rule: ShardingRule,
    axis: int,
    ranks: int,
    sizes: Mapping[str, int],
    fixed: Sequence[Fixed],
) -> RuleError:
    present = tuple(spec.placements[axis] for spec in call.specs)
    offered = "; ".join(
        _text(each.inputs, each.outputs) for each in candidates(rule, sizes, ranks, present)
    )
    kept = ", ".join(str(each.placements[axis]) for each in fixed)
    return RuleError(
        f"{call.op} to write its result in place, laid out as {kept} on axis {axis}",
        found=f"arguments {', '.join(spec.text for spec in call.specs)}",
        why="in-place operations that require placement changes are not supported, and the "
        f"operator offers only {offered}",
        hint="redistribute the tensor that is written to first, or use the operator's "
        "out-of-place form",
    )
