"""Statements from samples of torch's operator database, with a program's own values in them.

A tensor of the sample is replaced by a tensor of the program that can be reshaped to it, or becomes
a new input. A value that is neither a tensor nor has a literal is referred to by its position in
the sample.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tests.programs.database import Sampled, operators, samples
from tests.programs.draw import Draw
from tests.programs.program import NAME, names_in

# They return uninitialized memory.
_UNINITIALISED = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
}  # fmt: skip
# Their results are views, whose values torch leaves undefined after a write to one.
_SHARING = {"unsafe_split", "unsafe_chunk"}
# They read an element after writing others: no element may be in two arguments.
_READING_LATE = re.compile("addmm|addmv|addbmm|baddbmm|addr|index|scatter|put|batch_norm")
# They reach positions in memory outside of a view, which a DTensor refuses, as documented: their
# tensors are new tensors, not views.
_PLACED = {"as_strided partial_views", "as_strided", "as_strided_copy", "as_strided_scatter"}
# On one device their kernels read an expanded or transposed tensor as if it were contiguous, which
# gives wrong values. `F.group_norm` copies such tensors before.
_CONTIGUOUS = {"native_group_norm"}
_LITERAL = (int, float, bool, str, type(None), complex, torch.dtype, torch.memory_format, slice)
_OTHERS = (torch.int64, torch.bool, torch.complex128, torch.int32, torch.uint8, torch.float32)


# Their results are defined for sorted sequences only: the first or second tensor is one.
_SORTED = {"bucketize": 1, "searchsorted": 0}


class _Code:
    """A value that prints as its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def sampled_call(d: Draw, name: str) -> str:
    """Return a call of an operator of the database, in one of its forms.

    Raises:
        ValueError: The operator has no sample that can be part of the program.
    """
    info = operators()[name]
    dtype = _dtype(d, info)
    found = samples(name, dtype)
    if not found:
        raise ValueError(f"no sample of {dtype}")
    number = d.dice.randrange(len(found))
    leaves, structure = found[number]
    texts = _texts(d, Sampled(name, dtype, number, 0), leaves)
    args, kwargs = tree_unflatten(texts, structure)
    form = "op"
    if info.inplace_variant is not None and d.chance(0.2):
        form = "op_"
    elif info.supports_out and d.chance(0.12):
        kwargs = {**kwargs, "out": _Code(_target(d, repr((args, kwargs))))}
    if "lstsq" in name and kwargs.get("driver") in (None, "gelsy"):
        raise ValueError("the kernel of driver gelsy reads memory that it has not written")
    writes = form == "op_" or "batch_norm" in name
    if writes and _READING_LATE.search(name) and _meets_itself(d, repr((args, kwargs))):
        raise ValueError("it writes to what it reads, before or after")
    given = [repr(each) for each in args] + [f"{key}={each!r}" for key, each in kwargs.items()]
    code = f"{form}({', '.join([repr(name), *given])})"
    if name in _SHARING:
        return f"[each.clone() for each in {code}]"
    return f"{code}.zero_()" if name in _UNINITIALISED else code


def _target(d: Draw, arguments: str) -> str:
    """Choose a variable to write a result to, which shares no memory with those that are read.

    Raises:
        ValueError: There is none.
    """
    read = {_memory(d.values[name]) for name in names_in(arguments)}
    fits = [
        name
        for name, value in d.tensors().items()
        if not value.requires_grad and _memory(value) not in read
    ]
    if not fits:
        raise ValueError("no tensor to write to")
    return d.one_of(fits)


def _meets_itself(d: Draw, arguments: str) -> bool:
    """Return whether elements of the tensors that are named share memory."""
    if ".expand(" in arguments:
        return True
    memories = [_memory(d.values[name]) for name in NAME.findall(arguments)]
    return len(set(memories)) < len(memories)


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _dtype(d: Draw, info: Any) -> torch.dtype:
    """Choose the program's dtype if supported, at times another dtype that is as exact."""
    supported = info.supported_dtypes("cpu")
    others = [each for each in _OTHERS if each in supported and _is_as_exact(d, each)]
    if d.dtype in supported and not (others and d.chance(0.2)):
        return d.dtype
    if others:
        return d.one_of(others)
    raise ValueError(f"takes no {d.dtype}")


def _is_as_exact(d: Draw, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point or dtype.is_complex
    return not floating or torch.finfo(dtype).eps <= torch.finfo(d.floating).eps


def _texts(d: Draw, where: Sampled, leaves: Sequence[Any]) -> list[Any]:
    """Return code for each leaf."""
    texts: list[Any] = []
    is_first = True
    for number, leaf in enumerate(leaves):
        place = where._replace(leaf=number)
        if isinstance(leaf, torch.Tensor):
            chance = 0.0 if where.operator in _PLACED else 0.6 if is_first else 0.3
            own = _own(d, leaf, chance)
            code = own or d.sample(place, leaf)
            code = f"{code}.contiguous()" if where.operator in _CONTIGUOUS else code
            is_sorted = _SORTED.get(where.operator) == number
            texts.append(_Code(f"{code}.sort(-1).values" if is_sorted else code))
            is_first = False
        elif isinstance(leaf, float):
            texts.append(_Code(f"float({str(leaf)!r})"))
        elif leaf is Ellipsis or isinstance(leaf, _LITERAL):
            texts.append(leaf)
        else:
            texts.append(_Code(f"sampled({place!r})"))
    return texts


def _own(d: Draw, wanted: torch.Tensor, probability: float) -> str | None:
    """Choose a tensor of the program in place of a tensor of the sample, reshaped if need be."""
    if not d.chance(probability):
        return None
    alike = [name for name, v in d.tensors().items() if v.dtype is wanted.dtype]
    exact = [name for name in alike if d.values[name].shape == wanted.shape]
    if exact and d.chance(0.7):
        return d.one_of(exact)
    is_number = wanted.is_floating_point() or wanted.is_complex()
    if not alike or not is_number:
        return d.one_of(exact) if exact else None
    return _brought(d, d.one_of(alike), list(wanted.shape))


def _brought(d: Draw, name: str, shape: list[int]) -> str | None:
    """Return an expression of this shape from the variable's elements, or None."""
    value, count = d.values[name], torch.Size(shape).numel()
    if value.numel() == count:
        return f"{name}.reshape({shape})"
    if value.numel() > count:
        return f"{name}.flatten()[:{count}].reshape({shape})"
    if value.ndim <= len(shape) and value.numel():
        fits = zip(reversed(value.shape), reversed(shape), strict=False)
        if all(size in (1, wanted) for size, wanted in fits):
            return f"{name}.expand({shape})"
    return None
