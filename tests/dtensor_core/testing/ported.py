"""Tests written for torch's harness; pytest does not collect them, test_cases runs them.

Some must fail; the failures are checked.
"""

# ruff: noqa: PT009

from __future__ import annotations

import unittest

import torch
import torch.distributed as dist

from dtensor_core import DeviceMesh, Replicate, Shard, distribute_tensor
from dtensor_core.testing import (
    NUM_DEVICES,
    DTensorOpTestBase,
    DTensorTestBase,
    skip_if_lt_x_gpu,
    skip_unless_torch_gpu,
    with_comms,
)


class OnProcesses(DTensorTestBase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
        self.only_in_the_runner = self.rank

    @with_comms
    def test_passes(self) -> None:
        self.assertEqual(dist.get_rank(), self.rank)
        self.assertEqual(dist.get_world_size(), self.world_size)
        self.assertEqual(dist.get_backend(), "gloo")
        self.assertFalse(hasattr(self, "only_in_the_runner"))
        mesh = self.build_device_mesh()
        placed = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        self.assertEqual(placed.to_local(), torch.arange(4.0).chunk(2)[self.rank])

    @with_comms(eager_init=False, backend="gloo")
    def test_passes_with_arguments(self) -> None:
        self.assertEqual(DeviceMesh(self.device_type, [0, 1]).size(), 2)

    @with_comms
    def test_fails_on_one_rank(self) -> None:
        self.assertEqual(self.rank, 0)

    @with_comms
    def test_raises(self) -> None:
        raise KeyError("everywhere")

    @with_comms
    def test_skips(self) -> None:
        raise unittest.SkipTest("not today")

    @skip_if_lt_x_gpu(100)
    @with_comms
    def test_needs_100_gpus(self) -> None:
        raise AssertionError

    @with_comms
    def test_subtests(self) -> None:
        self.run_subtests({"x": [1, 2], "y": [3]}, self._sum_is_less_than, 6)

    @with_comms
    def test_subtest_fails(self) -> None:
        self.run_subtests({"x": [1, 9], "y": [3]}, self._sum_is_less_than, 6)

    def _sum_is_less_than(self, limit: int, x: int, y: int) -> None:
        self.assertLess(x + y, limit)

    def test_makes_its_own_group(self) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=2
        )
        self.assertEqual(dist.get_rank(), self.rank)

    def test_cleans_up(self) -> None:
        self.addCleanup(print, f"cleaned up by rank {self.rank}")


class OldInit(OnProcesses):
    """Overrides `init_pg` with the signature of older harnesses."""

    def init_pg(self) -> None:
        super().init_pg()

    def test_nothing(self) -> None:
        """Has no group."""
        self.assertFalse(dist.is_initialized())


class OnThreads(DTensorOpTestBase):
    def perThreadSetUp(self) -> None:
        super().perThreadSetUp()
        self.set_up_on = self.rank

    def test_passes(self) -> None:
        self.assertEqual(dist.get_world_size(), NUM_DEVICES)
        self.assertEqual(dist.get_rank(), self.rank)
        self.assertEqual(self.set_up_on, self.rank)

    @with_comms
    def test_passes_with_comms(self) -> None:
        self._test_op(self.build_device_mesh(), torch.add, torch.randn(8, 4), torch.randn(8, 4))

    def test_looks_at_one_rank(self) -> None:
        self.assertEqualOnRank(self.rank, 1, rank=1)
        self.assertNotEqualOnRank(self.rank, 0, rank=1)

    def test_looks_at_one_rank_and_fails(self) -> None:
        self.assertEqualOnRank(self.rank, 0, rank=1)

    def test_op_fails(self) -> None:
        def local_sum(tensor: torch.Tensor) -> torch.Tensor:
            if not hasattr(tensor, "to_local"):
                return tensor.sum()
            mesh = self.build_device_mesh()
            return distribute_tensor(tensor.to_local().sum(), mesh, [Replicate()])

        torch.manual_seed(0)
        self._test_op(self.build_device_mesh(), local_sum, torch.randn(8))

    def test_fails_on_one_rank(self) -> None:
        self.assertEqual(self.rank, 0)

    @skip_unless_torch_gpu
    def test_skips_without_gpus(self) -> None:
        pass


class NeverEnds(DTensorOpTestBase):
    timeout_s = 0.2

    def test_never_ends(self) -> None:
        while self.rank == 1:
            pass
