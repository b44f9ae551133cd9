"""Operators that depend on memory layout, or write where several names alias."""

from __future__ import annotations

import torch

from tests.programs.draw import Draw

_BITS = {
    1: (torch.uint8, torch.int8, torch.bool),
    2: (torch.int16, torch.float16, torch.bfloat16),
    4: (torch.int32, torch.float32),
    8: (torch.int64, torch.float64, torch.complex64),
    16: (torch.complex128,),
}
_FORMATS = ("contiguous_format", "preserve_format", "channels_last")


def has_dims(value: torch.Tensor) -> bool:
    return value.ndim > 0


def other_dtype(d: Draw) -> str:
    """Views of the bytes as another dtype, narrower or wider."""
    names = [name for name, v in d.tensors().items() if v.ndim and v.dtype is not torch.bool]
    if not names:
        return f"{d.tensor()}.view(torch.int64)"
    x = d.one_of(names)
    size = d.one_of([1, 2, 4, 8, 16])
    dtype = d.one_of(_BITS[size])
    made = d.one_of((x, f"{x}.contiguous()", f"{x}.detach()", f"{x}.transpose(0, -1)"))
    return f"{made}.view({dtype})"


def strided(d: Draw) -> str:
    """Views with strides that are given, or derived from the tensor's."""
    x = d.tensor(lambda v: v.ndim > 0 and v.numel() > 0)
    value = d.values[x]
    size = [d.dice.randint(1, n) for n in value.shape]
    return d.one_of(
        (
            f"{x}.as_strided({size}, {list(value.stride())})",
            f"{x}.clone().as_strided({size[::-1]}, {list(value.stride())[::-1]}, 0)",
            f"{x}.unfold({d.dim(x)}, {d.dice.randint(1, 3)}, {d.dice.randint(1, 2)})",
            f"{x}.view({list(value.shape)})",
            f"{x}.view(-1)",
            f"{x}.view({[1, *value.shape]})",
            f"{x}.transpose(0, -1).contiguous().view(-1)",
            f"{x}.expand_as({x})",
            f"{x}.T" if value.ndim == 2 else f"{x}.mT",
            f"{x}.t()" if value.ndim <= 2 else f"{x}.ravel()",
            f"{x}.contiguous(memory_format=torch.{d.one_of(_FORMATS)})",
            f"{x}.clone(memory_format=torch.{d.one_of(_FORMATS)})",
            f"torch.empty_like({x}, memory_format=torch.{d.one_of(_FORMATS)}).zero_()",
            f"{x}.new_empty_strided({list(value.shape)}, {list(value.stride())}).zero_()",
            f"{x}.to(memory_format=torch.{d.one_of(_FORMATS)})",
        )
    )


def diagonals(d: Draw) -> str:
    """Reads and writes of diagonals."""
    x = d.tensor(lambda v: v.ndim >= 2)
    value, offset = d.values[x], d.dice.randint(-2, 2)
    writable = d.one_of((f"{x}.clone()", f"({x} * 1)", x, f"{x}.transpose(0, 1).clone()"))
    return d.one_of(
        (
            f"{writable}.fill_diagonal_({d.scalar()}, wrap={d.chance(0.5)})",
            f"{writable}.fill_diagonal_({d.scalar()})",
            f"{writable}.tril_({offset})",
            f"{writable}.triu_({offset})",
            f"{x}.diagonal({offset})",
            f"{x}.diagonal({offset}, -1, -2) * 2",
            f"{writable}.diagonal().fill_({d.scalar()})",
            f"{writable}.diagonal({offset}).mul_({d.scalar()})",
            f"torch.diag({x})" if value.ndim == 2 else f"torch.diag_embed({x}, {offset})",
            f"torch.diagonal_copy({x}, {offset})",
        )
    )


def written_view(d: Draw) -> str:
    """A write through a view of a variable."""
    x, s = d.tensor(lambda v: v.ndim > 0 and v.numel() > 0), d.scalar()
    value = d.values[x]
    dim = d.dice.randrange(value.ndim)
    size = value.shape[dim]
    start = d.dice.randrange(size)
    step = d.one_of((1, 1, 2))
    before = ":, " * dim
    view = d.one_of(
        (
            f"{x}[{before}{start}:]",
            f"{x}[{before}{start}::{step}]",
            f"{x}[{before}{start}]",
            f"{x}.transpose(0, -1)",
            f"{x}.transpose(0, -1)[{d.dice.randrange(value.shape[-1])}]",
            f"{x}.unsqueeze({dim})",
            f"{x}.view(-1)",
            f"{x}.reshape(-1)",
            f"{x}.flatten()",
            f"{x}.narrow({dim}, {start}, {size - start})",
            f"{x}.chunk(2, {dim})[0]",
            f"{x}.split(2, {dim})[-1]",
            f"{x}.unbind({dim})[{start}]",
            f"{x}.select({dim}, {start})",
            f"{x}.squeeze()",
            f"{x}.detach()",
            f"{x}.data",
        )
    )
    return view + d.one_of(
        (
            f".mul_({s})",
            f".add_({s})",
            f".fill_({s})",
            ".zero_()",
            ".neg_()",
            ".abs_()",
            f".copy_({d.new(())})",
            f".copy_({s})",
            f".copy_({int(s * 4)})",
            f".view({d.one_of(_BITS[value.dtype.itemsize])}).zero_()",
            ".view(torch.uint8).fill_(0)",
            ".view(torch.int16).zero_()",
            f".add_({d.new(())})",
            f".clamp_(max={s})",
            ".cumsum_(0)",
            ".tanh_()",
        )
    )


def read(d: Draw) -> str:
    """Attributes that Python reads of a tensor, alike on every rank."""
    x = d.one_of(list(d.tensors()))
    value = d.values[x]
    one = f"{x}.flatten()[{d.dice.randrange(value.numel())}]" if value.numel() else x
    return d.one_of(
        (
            f"list({x}.shape)",
            f"{x}.stride()",
            f"{x}.is_contiguous()",
            f"{x}.numel()",
            f"{one}.item()",
            f"torch.equal({x}, {x}.clone())",
            f"torch.allclose({x}, {x})",
            f"bool(({x} == {x}).all())",
            f"{x}.element_size()",
            f"{x}.tolist()",
            f"{x}.dtype",
            f"len({x})",
        )
    )
