"""Entries of calls not seen before.

Made from the call's global metadata, the decision of `propagate`, and this rank's local operator.
Called by `dispatch` on a cache miss; nothing here runs on a cached call. The file exceeds the usual
length, since all kinds of entries share the preparation of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from dtensor_core.dispatch.arguments import (
    Args,
    Kwargs,
    converted,
    first_device,
    first_mesh,
    flattened,
    plain_numbers,
    spec_on,
)
from dtensor_core.dispatch.entry import (
    CallKind,
    DecomposedCall,
    Entry,
    InPlaceCall,
    ListCall,
    OutCall,
    PlainCall,
    ReshapingCall,
    ViewCall,
    ViewsCall,
)
from dtensor_core.dispatch.metadata.output_metadata import output_metadata, view_offsets
from dtensor_core.dispatch.metadata.shortcuts import copies_sizes
from dtensor_core.dispatch.special.decomposition import derivation
from dtensor_core.dispatch.special.fallback import NO_RULE, missing
from dtensor_core.dispatch.special.foreach import (
    decide_elements,
    is_list_operator,
    local_list_operator,
    plans_by_number,
)
from dtensor_core.dispatch.special.grad_scaler import UNSCALE, unscaling
from dtensor_core.dispatch.special.inplace_writeback import Back, outs_of, without_out
from dtensor_core.dispatch.special.kernel_errors import check_supported
from dtensor_core.dispatch.special.mutated_arguments import (
    fixed_arguments,
    functional_form,
    mutated_arguments,
    only_place,
    returned,
    written_aside,
)
from dtensor_core.dispatch.special.storage_offset import counted_from, counting_from, offset_of
from dtensor_core.errors import RuleError
from dtensor_core.operators.kernels.local_operator import (
    argument_names,
    local_operator,
    with_lazy_bits,
)
from dtensor_core.operators.kernels.memory_layout import MAY_COPY
from dtensor_core.operators.rules.call import Call
from dtensor_core.propagate import Decision, Fixed, decide
from dtensor_core.redistribute.execute import Origin
from dtensor_core.redistribute.partial_combine import within
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload

# In-place views: the tensor changes its shape, and its placements change with it.
_RESHAPING = frozenset(
    f"aten::{name}_"
    for name in ["squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims", "as_strided"]
)


def make_entry(op: OpOverload, args: Args, kwargs: Kwargs, *, derives: bool = True) -> Entry:
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
    offset = offset_of(op, args)
    if offset:
        entry = _entry_of(op, *counted_from(offset, op, args, kwargs), derives)
        entry.run = counting_from(offset, op, entry.run)
        return entry
    return _entry_of(op, args, kwargs, derives)


def _entry_of(op: OpOverload, args: Args, kwargs: Kwargs, derives: bool) -> Entry:
    mesh = first_mesh(args, kwargs)

    def spec_of(tensor: torch.Tensor) -> Spec:
        return spec_on(mesh, tensor)

    spec_args, spec_kwargs = converted(torch.Tensor, spec_of, args, kwargs)
    written = mutated_arguments(op, args, kwargs)
    outs = {name for name in written if isinstance(name, str)}
    names, specs = _numbered(op, spec_args, {k: v for k, v in spec_kwargs.items() if k not in outs})
    if is_list_operator(op):
        plain = plain_numbers(tuple(args), dict(kwargs))
        device = first_device(args, kwargs)
        return _list_entry(op, spec_args, spec_kwargs, names, written, plain, device)
    if not specs:
        return _factory_entry(op, spec_args, spec_kwargs, written)
    if outs:
        return _out_entry(op, args, kwargs, outs)
    outputs = output_metadata(op, spec_args, spec_kwargs)
    call = Call(op, spec_args, spec_kwargs, specs, outputs or ())
    reshapes = op._schema.name in _RESHAPING
    fixed = fixed_arguments(call, written) if written and not reshapes else []
    decision = decide(call, fixed)
    instead = derivation(call, decision) if derives and decision.lacks_rule else None
    if instead is not None:
        return Entry(instead, DecomposedCall(), read=frozenset(argument_names(op)))
    if not reshapes and not _is_view(op):
        check_supported(call, decision, first_device(args, kwargs))
    made = _Made(op, args, kwargs, call, decision, names, outputs is not None)
    if reshapes:
        return made.reshaping()
    if written:
        return made.in_place(written, _backs(fixed, decision, call))
    return made.view() if _is_view(op) else made.plain()


class _Made:
    """The entry of a decided call, by the kinds that have a rule of their own."""

    def __init__(
        self,
        op: OpOverload,
        args: Args,
        kwargs: Kwargs,
        call: Call,
        decision: Decision,
        names: Sequence[str],
        is_known: bool,
    ) -> None:
        self.op, self.args, self.kwargs, self.call = op, args, kwargs, call
        self.decision, self.names = decision, names
        self.outputs = decision.outputs if is_known else None
        self.maker = decision.rule and decision.rule.local
        note = _note(decision)
        reasons = [Origin(str(op), name, decision.considered, note) for name in names]
        moves = enumerate(zip(decision.plans, reasons, strict=True))
        self.moves = tuple([(n, plan, reason) for n, (plan, reason) in moves if plan.steps])
        self.missing = missing(op, names, call.specs, self.moves) if note else None

    def _run(self, op: OpOverload) -> Callable[..., Any]:
        """Return the function that this rank runs, and exchanges with others in."""
        decision, inputs = self.decision, self.decision.inputs
        run = local_operator(op, self.maker, inputs, decision.outputs)
        # A rank outside of the mesh joins no exchange; its local operator makes empty results.
        if decision.exchanges and inputs[0].coords is not None:
            run = _exchanging(self.op, run, decision, self.names)
        return run

    def _ready(self, run: Callable[..., Any]) -> Callable[..., Any]:
        # The C++ function saves every cached call the Python frame of OpOverload.__call__.
        ready = self.op._op if run is self.op else run
        specs = (*self.decision.inputs, *self.decision.outputs)
        return with_lazy_bits(ready) if any([s.dtype.is_complex for s in specs]) else ready

    def _is_sizeless(self, run: Callable[..., Any]) -> bool:
        return (
            run is self.op
            and self.decision.sizeless
            and self.maker is None
            and not plain_numbers(tuple(self.args), self.kwargs)
            and copies_sizes(self.op, self.call.args, self.call.kwargs)
        )

    def _entry(
        self,
        run: Callable[..., Any],
        kind: CallKind,
        *,
        single: Spec | None = None,
        place: int | None = None,
    ) -> Entry:
        return Entry(
            self._ready(run),
            kind,
            self.moves,
            bool(self.moves or kind.backs),
            single,
            place,
            run is self.op and place == 0 and not self.moves,
            frozenset(self.call.read),
            self.missing,
            kind.alias,
            kind.offsets[0] if kind.offsets else 0,
        )

    def plain(self) -> Entry:
        """Return the entry of a call that writes nothing."""
        run = self._run(self.op)
        is_single = self.outputs is not None and _returns_one_tensor(self.op)
        single = self.decision.outputs[0] if is_single else None
        entry = self._entry(run, PlainCall(self.outputs, self._is_sizeless(run)), single=single)
        entry.may_be_part = run is not self.op
        return entry

    def view(self) -> Entry:
        """Return the entry of a call that returns a view, or several."""
        run = self._run(self.op)
        kind = ViewCall if _returns_one_tensor(self.op) else ViewsCall
        copied = bool(self.moves) or _is_copy(self.decision)
        may_copy = self.maker in MAY_COPY
        offsets = view_offsets(self.op, self.call.args, self.call.kwargs)
        view = kind(self.outputs, copied, may_copy, self._is_sizeless(run), offsets)
        return self._entry(run, view)

    def reshaping(self) -> Entry:
        """Return the entry of an in-place view."""
        run = self._run(functional_form(self.op))
        return self._entry(run, ReshapingCall(self.decision.outputs[0]))

    def in_place(self, written: tuple[int | str, ...], backs: tuple[Back, ...]) -> Entry:
        """Return the entry of a call that writes to arguments."""
        run = self._run(self.op)
        results = returned(self.op, written)
        aside = written_aside(self.op, written, results)
        place = None if backs or aside else only_place(self.op, results, self.args)
        kind = InPlaceCall(
            results,
            self.outputs,
            aside,
            backs,
            returns_nothing=not self.op._schema.returns,
        )
        return self._entry(run, kind, place=place)


def _note(decision: Decision) -> str:
    """Return the note that the reason of an argument's communication carries."""
    return NO_RULE if decision.lacks_rule else ""


def _exchanging(
    op: OpOverload, run: Callable[..., Any], decision: Decision, names: Sequence[str]
) -> Callable[..., Any]:
    """Return `run`, enclosed by the exchanges between ranks that the operator needs."""
    inputs = decision.inputs
    origins: list[Origin] = []
    for exchange in decision.exchanges:
        moved = next(
            n for n, s in enumerate(inputs) if s.placements[exchange.axis].sharded_dim is not None
        )
        origins.append(Origin(str(op), names[moved], decision.considered))
    return within(decision.exchanges, op, run, inputs, decision.outputs[0], origins)


def _backs(fixed: Sequence[Fixed], decision: Decision, call: Call) -> tuple[Back, ...]:
    """Return the write-backs of arguments that were written in another layout than their own."""
    backs: list[Back] = []
    for each in fixed:
        now, home = decision.inputs[each.whose], call.specs[each.whose]
        if now is not home:
            backs.append(
                Back(each.whose, now, plan_between(now, home), Origin(str(call.op), "written"))
            )
    return tuple(backs)


def _is_copy(decision: Decision) -> bool:
    """True if a result has rows or reduced values that its argument has not, so it is no view."""
    if any(exchange.moves for exchange in decision.exchanges):
        return True
    if not decision.outputs:  # `unbind` along a dim without elements
        return False
    before, after = decision.inputs[0].placements, decision.outputs[0].placements
    return any(b.is_partial() and not a.is_partial() for a, b in zip(before, after, strict=True))


@lru_cache(maxsize=4096)
def _is_view(op: OpOverload) -> bool:
    """True if a result shares its elements with an argument that is not written."""
    alias = op._schema.returns[0].alias_info if op._schema.returns else None
    return alias is not None and not alias.is_write


def _list_entry(
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    names: Sequence[str],
    written: tuple[int | str, ...],
    plain: frozenset[int],
    device: torch.device,
) -> Entry:
    """Make the entry of a list operator from the decisions of its elements."""
    elements = decide_elements(op, args, kwargs, written, plain)
    for element in elements:
        check_supported(element.call, element.decision, device)
    moves = tuple(
        (number, plan, Origin(str(op), names[number], decision.considered, _note(decision)))
        for number, (plan, decision) in plans_by_number(elements).items()
    )
    lacking = [move for move in moves if move[2].note]
    specs = [value for value in flattened(args, kwargs) if isinstance(value, Spec)]
    backs = tuple(
        Back(e.numbers[back.whose], back.spec, back.plan, back.origin)
        for e in elements
        for back in _backs(e.fixed, e.decision, e.call)
    )
    kind = ListCall(
        written,
        tuple([None if e.is_plain else e.decision.outputs[0] for e in elements]),
        written_aside(op, written, ()),
        backs,
        returns_nothing=not op._schema.returns,
    )
    return Entry(
        run=unscaling(elements) if op is UNSCALE else local_list_operator(op, elements),
        kind=kind,
        moves=moves,
        is_moved=bool(moves or backs),
        read=frozenset().union(*[element.call.read for element in elements]),
        missing=missing(op, names, specs, lacking) if lacking else None,
    )


def _out_entry(op: OpOverload, args: Args, kwargs: Kwargs, names: set[str]) -> Entry:
    """Make the entry of a call with `out=`: as for the call without it, plus the destinations."""
    rest = {name: arg for name, arg in kwargs.items() if name not in names}
    functional = without_out(op, names)
    if "dtype" in argument_names(functional) and "dtype" not in argument_names(op):
        (target,) = (kwargs[name] for name in names)
        rest["dtype"] = target.dtype
    entry = make_entry(functional, args, rest, derives=False)
    run = entry.run

    def local(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **{name: arg for name, arg in kwargs.items() if name not in names})

    outs = outs_of(op, getattr(entry.kind, "outputs", None), kwargs, names)
    return Entry(
        local,
        OutCall(outs, tuple(names)),
        entry.moves,
        bool(entry.moves),
        read=entry.read,
        missing=entry.missing,
    )


def _factory_entry(
    op: OpOverload, args: tuple[Any, ...], kwargs: Kwargs, written: tuple[int | str, ...]
) -> Entry:
    """Make the entry of a call whose only tensor is `out=`.

    Every rank computes the full result and keeps its part.

    Raises:
        RuleError: The result does not fit `out`, or `out` holds partial sums.
    """
    (place,) = written
    spec: Spec = kwargs[str(place)]
    call = Call(op, args, kwargs, (), output_metadata(op, args, kwargs) or ())
    fixed_arguments(call, written)
    if spec.sums:
        raise RuleError(
            f"{op} to write to {spec.text}",
            found="partial sums that are not reduced yet",
            why="the written values would be summed over the ranks",
            hint="write to a tensor that is Replicate or Shard",
        )

    def run(*args: Any, **kwargs: Any) -> Any:
        out = kwargs[str(place)]
        if spec.coords is not None:
            # Random numbers are drawn in memory order, so the strides are those of the full tensor.
            full = out.new_empty_strided(spec.shape, spec.stride)
            op(*args, **{**kwargs, str(place): full})
            out.copy_(spec.part_of(full))
        return out

    return Entry(run, InPlaceCall(written))


@lru_cache(maxsize=4096)
def _returns_one_tensor(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _numbered(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[list[str], tuple[Spec, ...]]:
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
