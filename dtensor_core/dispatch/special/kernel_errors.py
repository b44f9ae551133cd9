"""Calls that a kernel refuses for dtypes, shapes or options, refused on all ranks alike.

Kernels see local tensors. One that returns early for a tensor without elements, a local function of
ours, or a shard whose size happens to fit, accepts what raises elsewhere; ranks that go on would
wait for the others. A new call whose ranks may differ, or that sends something first, is therefore
tried on the full shapes, unless they are large: with zeros, and with ones if zeros are refused,
since values may be the reason (a divisor, a pivot, an assertion). What neither passes is refused
before anything is sent. Called by `make_entry`, for new calls only.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from dtensor_core.dispatch.arguments import converted
from dtensor_core.dispatch.cache import CACHE, MOST_ACCEPTED
from dtensor_core.dispatch.metadata.output_metadata import call_key
from dtensor_core.dispatch.metadata.shortcuts import base_name, contiguous
from dtensor_core.dispatch.special.foreach import is_list_operator
from dtensor_core.operators.kernels.local_operator import argument_names, called_with
from dtensor_core.operators.rules.call import Call
from dtensor_core.propagate import Decision
from dtensor_core.spec import Spec

# They read their integers without bounds, or compare them with sizes.
_READING_INTEGERS = frozenset(
    ("lu_unpack", "linalg_lu_solve", "linalg_ldl_solve", "segment_reduce", "repeat_interleave")
)
_WRITING_AT_MASKS = frozenset(("index_put", "_unsafe_index_put", "_index_put_impl"))
_MASKS = (torch.bool, torch.uint8)
_MOST_ELEMENTS = 1 << 18


def check_supported(call: Call, decision: Decision, device: torch.device) -> None:
    """Raise a kernel's error for the metadata of a call, on all ranks.

    Args:
        call: The call.
        decision: Its decision.
        device: The device of its tensors.

    Raises:
        Exception: The error of the kernel, which raises for zeros and for ones.
    """
    if not (_differs(decision) and _can_be_tried(call, decision, device)):
        return
    key = None
    with suppress(TypeError):
        key = (device, *call_key(call.op, call.args, call.kwargs))
        if key in CACHE.accepted_calls:
            return
    tried = _for_any_count(call)
    error = _error(tried, 0, device)
    if error is not None and _error(tried, 1, device) is not None:
        raise error
    if key is not None:
        if len(CACHE.accepted_calls) >= MOST_ACCEPTED:
            CACHE.accepted_calls.clear()
        CACHE.accepted_calls.add(key)


def _differs(decision: Decision) -> bool:
    """True if ranks may run other kernels, or on other sizes, or something is sent first."""
    return (
        bool(decision.exchanges)
        or (decision.rule is not None and decision.rule.local is not None)
        or any([plan.steps for plan in decision.plans])
        or not all([spec.is_even for spec in (*decision.inputs, *decision.outputs)])
    )


def _can_be_tried(call: Call, decision: Decision, device: torch.device) -> bool:
    """True for operators of torch that only compute, on tensors that are not large."""
    op, specs = call.op, (*call.specs, *decision.outputs)
    return (
        op.namespace == "aten"
        and not is_list_operator(op)  # a fused one; others are tried as their plain operators
        and bool(op._schema.returns)
        and base_name(op) not in _READING_INTEGERS
        and "storage_offset" not in argument_names(op)  # memory that only a real tensor has
        and device.type != "meta"
        and _draws_by_generator(call)
        and sum([spec.shape.numel() for spec in specs]) <= _MOST_ELEMENTS
    )


def _for_any_count(call: Call) -> Call:
    """Return a call that fits however many elements its mask selects.

    In `x[mask] = y`, y may have an element per selected element, which neither zeros nor ones fit.
    """
    if base_name(call.op) not in _WRITING_AT_MASKS:
        return call
    target, indices, values, *rest = call.args
    masks = [each for each in indices if isinstance(each, Spec) and each.dtype in _MASKS]
    others = sum(1 for each in indices if each is None)
    place = values.ndim - 1 - (target.ndim - sum(mask.ndim for mask in masks) - others)
    if len(masks) + others != len(indices) or not masks or place < 0:
        return call
    shape = (*values.shape[:place], 1, *values.shape[place + 1 :])
    one = Spec(values.mesh, values.placements, contiguous(shape, values.dtype))
    return replace(call, args=(target, indices, one, *rest))


def _draws_by_generator(call: Call) -> bool:
    """True unless random numbers are drawn from the default generator, which must not advance."""
    if torch.Tag.nondeterministic_seeded not in call.op.tags:
        return True
    return "generator" in argument_names(call.op)


def _error(call: Call, value: int, device: torch.device) -> Exception | None:
    """Return the error of a call whose tensors are filled with `value`, or None."""
    try:
        made, named = converted(Spec, partial(_filled, value, device), call.args, call.kwargs)
    except Exception:  # a dtype without numbers, or no memory
        return None
    is_drawing = torch.Tag.nondeterministic_seeded in call.op.tags
    own = {"generator": torch.Generator(device)} if is_drawing else {}
    try:
        called_with(call.op, made, named, **own)
    except (torch.linalg.LinAlgError, torch.OutOfMemoryError):
        return None
    except Exception as error:
        return error
    return None


def _filled(value: int, device: torch.device, spec: Spec) -> torch.Tensor:
    if 0 in spec.stride:  # elements that share their memory cannot be written
        return torch.full(spec.shape, value, dtype=spec.dtype, device=device)
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
    return made.fill_(value)
