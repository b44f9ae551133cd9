"""Reductions on the wire: overflow of half precision, nan in max and min, announced bytes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import DTensor, Partial, Placement, Replicate, Shard, init_device_mesh, observe
from dtensor_core.redistribute.reduction_values import encoding_of
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.pool import run_processes
from dtensor_core.testing.threads import kept_mesh, on_threads

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TARGETS = (Replicate(), Shard(0))
NAN, INF = math.nan, math.inf


def _reduced(
    mesh: Any, values: list[list[float]], reduce_op: str, dtype: torch.dtype, target: Placement
) -> torch.Tensor:
    """Reduce a row of values per rank, and return the full tensor."""
    local = torch.tensor(values[dist.get_rank()], dtype=dtype)
    pending = DTensor.from_local(local, mesh, [Partial(reduce_op)])
    return pending.redistribute(placements=[target]).full_tensor()


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_average_does_not_overflow_if_its_terms_do_not(dtype: torch.dtype, ranks: int) -> None:
    largest, small = torch.finfo(dtype).max, float(torch.tensor(1e-3, dtype=dtype))
    row = [largest, -largest, small, 7.0]

    @on_threads(ranks)
    def body() -> None:
        for target in TARGETS:
            mean = _reduced(kept_mesh((ranks,)), [row] * ranks, "avg", dtype, target)
            assert mean.tolist() == row

    body()


def test_an_average_over_two_axes_fits_and_a_sum_over_one_of_them_counts() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        local = torch.full((3,), 30000.0, dtype=torch.float16)
        both = DTensor.from_local(local * 2, mesh, [Partial("avg")] * 2)
        assert both.full_tensor().tolist() == [60000.0] * 3
        mixed = DTensor.from_local(local, mesh, [Partial("sum"), Partial("avg")])
        assert mixed.full_tensor().tolist() == [60000.0] * 3

    body()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_average_of_equal_numbers_is_that_number(ranks: int) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))

    @on_threads(ranks)
    def body() -> None:
        pending = DTensor.from_local(x, kept_mesh((ranks,)), [Partial("avg")])
        torch.testing.assert_close(pending.full_tensor(), x, rtol=2e-7 * (ranks == 3), atol=0)

    body()


@pytest.mark.parametrize("dtype", FLOATING[:2], ids=str)
@on_threads(4)
def test_a_norm_of_halves_whose_square_would_overflow_fits(dtype: torch.dtype) -> None:
    for target in TARGETS:
        norm = _reduced(kept_mesh((4,)), [[300.0] * 4] * 4, "norm2", dtype, target)
        assert norm.tolist() == [600.0] * 4


def _extremes() -> list[list[float]]:
    """Extremes of each floating type, with a nan on each rank in turn, and with none."""
    mesh = init_device_mesh("cpu", (4,))
    found: list[list[float]] = []
    for dtype in FLOATING:
        for reduce_op in ("max", "min"):
            for target in TARGETS:
                for rank in range(5):
                    rows = [[each - 1.5, -each, INF, -INF, 0.0] for each in map(float, range(4))]
                    if rank < 4:  # the sign of a nan does not matter
                        rows[rank][:2] = [NAN, -NAN]
                    found.append(_reduced(mesh, rows, reduce_op, dtype, target).tolist())
    return found


def test_a_nan_of_any_rank_is_the_extreme_over_processes() -> None:
    for reports in run_processes(_extremes, 4):
        rows = iter(reports)
        for _ in FLOATING:
            for first in ([1.5, 0.0], [-1.5, -3.0]):
                for _ in TARGETS:
                    for _ in range(4):
                        row = next(rows)
                        assert all(map(math.isnan, row[:2]))
                        assert row[2:] == [INF, -INF, 0.0]
                    assert next(rows)[:2] == first


class SentBytes(TorchDispatchMode):
    """Records the input bytes of each all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.overloadpacket.__name__ == "all_reduce":
            self.all.append(args[0].numel() * args[0].element_size())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("reduce_op", "dtype"),
    [*itertools.product(("sum", "avg", "max", "norm2"), FLOATING), ("max", torch.int16)],
    ids=str,
)
def test_announced_bytes_are_those_that_are_sent(reduce_op: str, dtype: torch.dtype) -> None:
    reported: list[int] = []
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        pending = DTensor.from_local(torch.ones(6, dtype=dtype), mesh, [Partial(reduce_op)])
        with (
            observe.listening(lambda reason: reported.append(reason.payload_bytes)),
            SentBytes() as sent,
        ):
            pending.full_tensor()
    assert reported == sent.all != []


def test_sums_and_integers_are_sent_as_they_are() -> None:
    for dtype in FLOATING:
        assert encoding_of("sum", 1, dtype) is None
    for dtype in (torch.int64, torch.int32, torch.bool):
        assert encoding_of("max", 1, dtype) is None
