"""Interpolation: samples and channels are cut freely; of spatial dims what neighbours must know.

Where one of the two sizes divides the other and corners are not aligned, rows belong to groups of
the ratio: of a group the result needs those within `taps` groups, and a block of whole groups is
resampled as the whole is, but for its edges. Everywhere else spatial dims must be whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.operator import Local, zeros
from dtensor_core.local.windows import Part, extent, fitted
from dtensor_core.placement import Shard
from dtensor_core.redistribute.exchange import Rows
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.batched import batched
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.rules.windows import exchanging_rows
from dtensor_core.spec import Spec


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dim of an argument, of `given` rows a group, and of the result, of `made` rows a group.

    Both have `groups` of them, and what is `taps` groups away has an influence.
    """

    groups: int
    given: int
    made: int
    taps: int
    backward: bool

    def part(self, cut: Cut) -> Part:
        """What a rank needs, and works on, for its rows of the result."""
        own = local_extent(self.groups * self.made, cut.num_shards, cut.coord)
        if not own.size:
            return Part(Extent(0, 0), Extent(0, 0), own, own)
        first, end = own.offset // self.made, -(-(own.offset + own.size) // self.made)
        needs = self._around(first, end)
        # The gradient of a block lacks what its edges have of groups behind them.
        block = self._around(needs.offset, needs.offset + needs.size) if self.backward else needs
        rows, all_rows, made = (
            Extent(each.offset * times, each.size * times)
            for each, times in ((needs, self.given), (block, self.given), (block, self.made))
        )
        return Part(rows, all_rows, made, own)

    def _around(self, first: int, end: int) -> Extent:
        return extent(max(first - self.taps, 0), min(end + self.taps, self.groups))


def _dims(call: Call, own: int, taps: tuple[int, int]) -> dict[int, _Dim]:
    """Those spatial dims of which one size divides the other; `taps` upwards and downwards."""
    if call.argument("align_corners", False):
        return {}
    given, made = call.specs[0].shape, call.outputs[0].shape
    backward = call.op._schema.name.endswith("_backward")
    names = ["scales"] if own == 1 else [f"scales_{name}" for name in "dhw"[-own:]]
    found: dict[int, _Dim] = {}
    for number, name in enumerate(names):
        dim, scale = len(given) - own + number, call.argument(name)
        small, large = sorted((given[dim], made[dim]))
        source, result = (made, given) if backward else (given, made)
        exact = scale is None or scale * source[dim] == result[dim]
        if small and large % small == 0 and exact:
            reach = taps[0] if result[dim] >= source[dim] else taps[1]
            found[dim] = _Dim(small, given[dim] // small, made[dim] // small, reach, backward)
    return found


def _resampling(own: int, taps: tuple[int, int], *, backward: bool) -> Row:
    base = batched(own, linear=True)

    def build(call: Call) -> Rule | None:
        rule = base.build(call)
        assert rule is not None
        dims, first = _dims(call, own, taps), call.specs[0].ndim - own

        def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
            """The gradient is told the size of what was resampled."""
            nothing = zeros(op, [spec for spec in outputs if spec])  # pyright: ignore

            def local(x: torch.Tensor, size: Sequence[int], *rest: Any) -> torch.Tensor:
                if 0 in x.shape:
                    return nothing(x)
                if backward:
                    return op(x, size, [*x.shape[:first], *rest[0][first:]], *rest[1:])
                return op(x, size, *rest)

            return local

        def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
            parts = {dim: dims[dim].part(cut) for dim, cut in cuts.items()}

            def local(x: torch.Tensor, size: Sequence[int], *rest: Any) -> torch.Tensor:
                (x,) = rows([x])
                before, after = [list(rest[0]) if backward else [], list(size)]
                for dim, part in parts.items():
                    x = fitted(x, dim, part.needs, part.block)
                    after[dim - first] = part.block.size if backward else part.made.size
                    if backward:
                        before[dim] = part.made.size
                made = op(x, after, *([before, *rest[1:]] if backward else rest))
                for dim, part in parts.items() if 0 not in x.shape else ():
                    made = fitted(made, dim, part.made, part.own)
                return made

            return local

        for dim in dims:
            wants = {0: lambda cut, dim=dim: dims[dim].part(cut).needs}
            rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
        return replace(rule, local=maker)

    return Row(build, base.text.replace("!", ""), base.algebra)


# The dims of an operator, and how many groups away its taps are, upwards and downwards.
_TAPS: dict[str, tuple[Sequence[int], tuple[int, int]]] = {
    "upsample_nearest{}d": ((1, 2, 3), (0, 0)),
    "_upsample_nearest_exact{}d": ((1, 2, 3), (0, 0)),
    "upsample_linear{}d": ((1,), (1, 0)),
    "upsample_bilinear{}d": ((2,), (1, 0)),
    "upsample_trilinear{}d": ((3,), (1, 0)),
    "upsample_bicubic{}d": ((2,), (2, 1)),
    "_upsample_bilinear{}d_aa": ((2,), (1, 1)),
    "_upsample_bicubic{}d_aa": ((2,), (2, 2)),
    "_upsample_lanczos{}d_aa": ((2,), (3, 3)),
}

ROWS = {
    name.format(own) + ("_backward" if backward else ""): _resampling(own, taps, backward=backward)
    for name, (dims, taps) in _TAPS.items()
    for own in dims
    for backward in (False, True)
}
