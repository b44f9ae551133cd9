"""unittest classes whose test methods run on several ranks, such as `DTensorTestBase`.

In the test runner, a case replaces its test method by a function that makes the same case on every
rank (a process or a thread) and calls the method there. setUp and tearDown run in the test runner,
as in torch's harness.
"""

from __future__ import annotations

import inspect
import itertools
import tempfile
import types
import unittest
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dtensor_core.mesh import DeviceMesh
from dtensor_core.testing import worker
from dtensor_core.testing.compare import TestCase, assert_equal
from dtensor_core.testing.converter import DTensorConverter
from dtensor_core.testing.pool import DEFAULT_TIMEOUT_S, run_processes
from dtensor_core.testing.reference import Reference, reference_to
from dtensor_core.testing.skips import skip_if_lt_x_gpu
from dtensor_core.testing.thread_pool import seat
from dtensor_core.testing.threads import run_threads

Test = TypeVar("Test", bound=Callable[..., Any])

_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
DEVICE_TYPE = "cuda" if _GPUS > 1 else "cpu"
NUM_DEVICES = min(4, _GPUS) if _GPUS > 1 else 4


class MultiRankTestCase(TestCase):
    """A case whose test method runs on every rank; `rank` is -1 in the test runner."""

    MAIN_PROCESS_RANK = -1
    timeout_s = DEFAULT_TIMEOUT_S

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        self.rank = _rank_here()
        self.file_name = ""
        test = getattr(self, methodName, None)
        if test is not None and self.rank == self.MAIN_PROCESS_RANK:

            @wraps(test)
            def on_ranks(case: MultiRankTestCase) -> None:
                case.run_on_ranks(methodName)

            setattr(self, methodName, types.MethodType(on_ranks, self))

    def run_on_ranks(self, method: str) -> None:
        """Run the test method on `world_size` ranks."""
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return NUM_DEVICES

    @property
    def device_type(self) -> str:
        """The device of tensors: GPUs if there is one for every rank."""
        return DEVICE_TYPE if self.world_size <= _GPUS else "cpu"

    def build_device_mesh(self) -> DeviceMesh:
        """Return a one-axis mesh over all ranks."""
        return DeviceMesh(self.device_type, list(range(self.world_size)))

    def init_pg(self, eager_init: bool = False, backend: str | None = None) -> None:
        """Make the default process group of this rank; here it exists already."""

    def destroy_pg(self, device_id: int | None = None) -> None:
        """Wait until all ranks arrive; the process group is kept."""
        dist.barrier()

    def run_subtests(
        self, config: Mapping[str, Sequence[Any]], test: Callable[..., Any], *args: Any, **kw: Any
    ) -> None:
        """Call `test(*args, **kw)` with every combination of the values that `config` lists.

        Args:
            config: The values of each keyword argument.
            test: The function.
            *args: Its positional arguments.
            **kw: Its other keyword arguments.
        """
        for values in itertools.product(*config.values()):
            chosen = dict(zip(config, values, strict=True))
            with self.subTest(**chosen):
                test(*args, **kw, **chosen)
                dist.barrier()

    def _test_op(
        self, mesh: DeviceMesh, op_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        """Check that `op_call` gives the same on tensors and on DTensors of every layout."""
        expected = op_call(*args, **kwargs)
        converter = DTensorConverter(mesh, args, kwargs)
        for d_args, d_kwargs in converter:
            if not converter.successful():
                raise AssertionError("an argument of the operator can't be made a DTensor")
            assert_equal(op_call(*d_args, **d_kwargs).full_tensor(), expected)


class DTensorTestBase(MultiRankTestCase):
    """A case on ranks that are processes; decorate its tests with `with_comms`."""

    def run_on_ranks(self, method: str) -> None:
        """Run the test method on processes."""
        with tempfile.TemporaryDirectory(prefix="test-") as folder:
            run_processes(
                _run_case,
                self.world_size,
                reference_to(type(self)),
                method,
                f"{folder}/store",
                timeout_s=self.timeout_s,
                with_group=False,
            )

    @property
    def backend(self) -> str:
        """The communication backend for `device_type`."""
        return "nccl" if self.device_type == "cuda" else "gloo"

    def init_pg(self, eager_init: bool = False, backend: str | None = None) -> None:
        """Join the default process group; skip the test if NCCL has fewer GPUs than ranks.

        Args:
            eager_init: True if NCCL is to connect the ranks now.
            backend: The backend; `self.backend` if None.

        Raises:
            RuntimeError: The caller is not a rank.
        """
        backend = backend or self.backend
        if "nccl" in backend:
            if self.world_size > _GPUS:
                raise unittest.SkipTest(f"needs {self.world_size} GPUs, found {_GPUS}")
            torch.cuda.set_device(self.rank)
        place = worker.place()
        if place is None:
            raise RuntimeError("call init_pg on a rank, not in the test runner")
        device = torch.device("cuda", self.rank) if eager_init and "nccl" in backend else None
        place.init_group(backend, device)

    def destroy_pg(self, device_id: int | None = None) -> None:
        """Destroy the process group once all ranks arrive."""
        dist.barrier()
        dist.destroy_process_group()

    def _spawn_processes(self) -> None:
        """Do nothing; for cases that call it in their setUp."""


class DTensorOpTestBase(MultiRankTestCase):
    """A case on ranks that are threads; the default process group exists from the start."""

    def run_on_ranks(self, method: str) -> None:
        """Run the test method on threads, with a separate case for each."""

        def as_rank() -> None:
            case = type(self)(method)
            case.perThreadSetUp()
            try:
                _call_test(case, method)
            finally:
                case.perThreadTearDown()

        run_threads(as_rank, self.world_size, timeout_s=self.timeout_s)

    @property
    def device_type(self) -> str:
        """The device of tensors; threads can share a GPU."""
        return DEVICE_TYPE

    def assertEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """Fail unless the two are equal; checked on `rank` only."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """Fail if the two are equal; checked on `rank` only."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009

    def perThreadSetUp(self) -> None:
        """Set up the case on each rank, before the test."""

    def perThreadTearDown(self) -> None:
        """Tear down the case on each rank, after the test."""

    def _spawn_threads(self) -> None:
        """Do nothing; for cases that call it in their setUp."""


def with_comms(
    test: Callable[..., Any] | None = None, eager_init: bool = False, backend: str | None = None
) -> Any:
    """Decorate a test method to run with a process group: `@with_comms`, `@with_comms(...)`.

    After a failure the group is left to the harness, since destroying it here would wait for ranks
    that may never arrive.

    Args:
        test: The test method; None if the decorator is called with options.
        eager_init: True if NCCL is to connect the ranks when the group is made.
        backend: The backend of the group; the test case's if None.
    """
    if test is None:
        return lambda later: with_comms(later, eager_init, backend)

    @wraps(test)
    def with_group(case: Any, *args: Any, **kwargs: Any) -> None:
        takes = len(inspect.signature(case.init_pg).parameters)
        case.init_pg(*(eager_init, backend)[:takes])
        test(case, *args, **kwargs)
        case.destroy_pg()

    return with_group


def skip_unless_torch_gpu(test: Test) -> Test:
    """Decorate a test to skip if there are fewer than NUM_DEVICES GPUs."""
    return skip_if_lt_x_gpu(NUM_DEVICES)(test)  # pyright: ignore[reportReturnType]


def run_tests() -> None:
    """Run the tests of a script."""
    unittest.main(module="__main__")


def _rank_here() -> int:
    """Return the rank of the calling process or thread; -1 in a test runner."""
    place = worker.place()
    return place.rank if place is not None else seat.rank


def _run_case(case_class: Reference, method: str, file_name: str) -> None:
    """On a worker, make the case and call its test method."""
    case = case_class.resolve()(method)
    case.file_name = file_name
    _call_test(case, method)


def _call_test(case: unittest.TestCase, method: str) -> None:
    try:
        getattr(case, method)()
    finally:
        case.doCleanups()
