"""Operators on lists of tensors, calls with plain tensors among their arguments, and autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dtensor_core.experimental import implicit_replication
from tests.programs.draw import Draw

_WITH_NUMBERS = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min")
_OF_ONE = ("abs", "neg", "exp", "tanh", "sign", "floor")


def foreach(name: str, *args: Any) -> list[torch.Tensor]:
    """Run a list operator; in place, it returns the lists that it has written."""
    made = getattr(torch, f"_foreach_{name}")(*args)
    return list(args[0] if made is None else made)


def with_plain(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function with some arguments that are plain tensors, equal on every rank."""
    with implicit_replication():
        return function(*args)


def plain(values: Iterable[float], shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A plain tensor on every rank, filled with these values in turn."""
    numbers, count = list(values), torch.Size(shape).numel()
    return torch.tensor([numbers[n % len(numbers)] for n in range(count)]).to(dtype).view(shape)


def autocast(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function under autocast to bfloat16; the result has the dtype of the first argument."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = function(*args)
    return made.to(args[0].dtype)


def of_tensors(d: Draw) -> str:
    """A list operator with a number, a number for each tensor, or another list."""
    x, y = d.tensor(), d.tensor()
    one, other = d.new(d.values[x].shape), d.new(d.values[y].shape)
    name, s, t = d.one_of(_WITH_NUMBERS), d.scalar(), d.scalar()
    return d.one_of(
        (
            f"foreach('{name}', [{x}, {y}], {s})",
            f"foreach('{name}', [{x}, {y}], {int(s * 4)})",
            f"foreach('{name}', [{x}, {y}], [{s}, {t}])",
            f"foreach('{name}', [{x}, {y}], [{one}, {other}])",
            f"foreach('{d.one_of(_OF_ONE)}', [{x}, {y}])",
            f"foreach('lerp', [{x}, {y}], [{one}, {other}], 0.25)",
            f"foreach('pow', [{x}, {y}], [2, 3])",
            f"foreach('norm', [{x}, {y}])",
            f"foreach('addcmul', [{x}, {y}], [{one}, {other}], [{one}, {other}], [{s}, {t}])",
            f"foreach('add', [{x}, {y}], torch.tensor({s}))",
        )
    )


def of_tensors_in_place(d: Draw) -> str:
    """A list operator that writes to copies of tensors, or to a view of a tensor."""
    x, y = d.tensor(lambda v: v.ndim > 0 and v.numel() > 0), d.tensor()
    name, s, t = d.one_of(_WITH_NUMBERS), d.scalar(), d.scalar()
    written = d.one_of(
        (f"[{x}.clone(), {y}.clone()]", f"[{x}.clone()[..., :1], {y} * 1]", f"[{x}.clone().t()]")
    )
    numbers = [s, t][: written.count(",") - written.count(":1") + 1]
    return d.one_of(
        (
            f"foreach('{name}_', {written}, {s})",
            f"foreach('{name}_', {written}, {numbers})",
            f"foreach('zero_', {written})",
            f"foreach('copy_', [{x}.clone()], [{d.new(d.values[x].shape)}])",
        )
    )


def with_a_plain_tensor(d: Draw) -> str:
    """A call with a plain tensor among its arguments."""
    x = d.tensor(lambda v: 0 < v.ndim < 4 and 0 < v.numel() < 500)
    value = d.values[x]
    size, last = list(value.shape), value.shape[-1]
    numbers = [d.scalar(), d.scalar(), d.scalar()]

    def made(shape: list[int], dtype: torch.dtype = value.dtype, of: list[float] = numbers) -> str:
        return f"plain({of}, {shape}, {dtype})"

    mask = made(size, torch.bool, [1.0, 0.0, 1.0])
    index = f"plain({[d.dice.randrange(size[0]) for _ in range(3)]}, [3], torch.int64)"
    return d.one_of(
        (
            f"with_plain(torch.add, {x}, {made(size)})",
            f"with_plain(torch.mul, {made(size)}, {x})",
            f"with_plain(torch.mul, {x}, {made([last])})",
            f"with_plain(torch.where, {mask}, {x}, {made(size)})",
            f"with_plain(torch.where, {x} > 0.37, {made(size)}, {x})",
            f"with_plain(F.linear, {x}, {made([2, last])}, {made([2])})",
            f"with_plain(torch.matmul, {x}, {made([last, 3])})",
            f"with_plain(torch.index_select, {x}, 0, {index})",
            f"with_plain(torch.maximum, {x}, {made(size)})",
            f"with_plain(torch.addr, {made([size[0], last])}, {x}.flatten()[:{size[0]}],"
            f" {x}.flatten()[:{last}])",
            f"with_plain(F.layer_norm, {x}, [{last}], {made([last])}, {made([last])})",
            f"{x}.clone().copy_({made(size)})",
            f"{x}.clone()[..., 1:].copy_({made([*size[:-1], last - 1])})",
        )
    )


def under_autocast(d: Draw) -> str:
    """A product, a softmax or a norm under autocast."""
    x = d.tensor(lambda v: v.ndim == 2 and 0 < v.numel() < 500)
    rows, columns = d.values[x].shape
    y = d.new((columns, d.dice.randint(1, 5)), d.values[x].dtype)
    return d.one_of(
        (
            f"autocast(torch.mm, {x}, {y})",
            f"autocast(torch.matmul, {x}, {y})",
            f"autocast(F.linear, {x}, {y}.t())",
            f"autocast(torch.softmax, {x}, {d.dim(x)})",
            f"autocast(torch.sum, {x}, {d.dim(x)})",
            f"autocast(F.layer_norm, {x}, [{columns}])",
            f"autocast(torch.bmm, {x}.expand(2, {rows}, {columns}), {y}.expand(2, -1, -1))",
        )
    )


FAMILIES = {of_tensors: 2, of_tensors_in_place: 1, with_a_plain_tensor: 2, under_autocast: 1}
FUNCTIONS: dict[str, Any] = {
    "foreach": foreach, "with_plain": with_plain, "plain": plain, "autocast": autocast,
}  # fmt: skip
