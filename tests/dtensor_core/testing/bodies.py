"""Functions that the pool's tests run in its processes; module-level, to be importable."""

from __future__ import annotations

import ctypes
import os
import time
import unittest
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dtensor_core import Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import run_processes
from tests.commtrace.launching.launched import listening


@dataclass
class Value:
    number: int


def total(factor: int) -> tuple[int, float]:
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value)
    return dist.get_rank(), value.item() * factor


def sockets() -> set[tuple[str, int]]:
    """Sockets on which the rank listens while it has a group."""
    dist.barrier()
    return listening({os.getpid()})


def echo(value: Value) -> tuple[Value, int]:
    return value, os.getpid()


def process_id() -> int:
    return os.getpid()


def rank_two_raises() -> None:
    print("here is rank", dist.get_rank())
    if dist.get_rank() == 2:
        raise KeyError("lost")
    dist.barrier()


def rank_one_exits() -> None:
    if dist.get_rank() == 1:
        print("a last word", flush=True)
        os._exit(3)
    dist.barrier()


def rank_one_crashes() -> None:
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    dist.barrier()


def rank_one_spins() -> None:
    rank = dist.get_rank()
    while rank == 1:
        pass
    dist.barrier()


def rank_one_skips() -> None:
    if dist.get_rank() == 1:
        raise unittest.SkipTest("not on this machine")
    dist.barrier()


def returns_a_generator() -> object:
    return (i for i in range(3))


def prints() -> None:
    print("hello")
    os.write(2, b"from below\n")


def nested() -> None:
    run_processes(process_id, 2)


def initialized() -> bool:
    return dist.is_initialized()


def draws() -> float:
    torch.set_default_dtype(torch.float64 if dist.get_rank() else torch.float32)
    return torch.rand(1 + dist.get_rank())[0].item()


def default_dtype() -> str:
    return str(torch.get_default_dtype())


def placed(others_first: bool) -> bool:
    """Use an equal mesh whose groups have other names than in the previous task."""
    if others_first:
        dist.new_group([0, 1, 2])
    mesh = init_device_mesh("cpu", (2, 2))
    full = torch.arange(16.0).view(4, 4)
    return torch.equal(
        (distribute_tensor(full, mesh, [Shard(0), Shard(1)]) + 1).full_tensor(), full + 1
    )


def sleeps() -> None:
    with open(os.environ["PID_FILE"] + str(dist.get_rank()), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)
