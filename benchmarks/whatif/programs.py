"""Programs with a cost that a change takes away, and the same programs without it.

A program is made on each rank of a gloo group and has a function that runs a step. Its work is
sleep of a known length, so that ranks that share a core do not delay each other; its messages are
real. What a step costs in addition is in `costs`, which is empty for the program without it:

    program("barrier", rank, size).step(frozenset({"barrier"}))      with the cost
    program("barrier", rank, size).step(frozenset())                 without it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MIB = (1 << 20) // 4
"""Number of float32 values of a MiB."""

Step = Callable[[Set[str]], None]


@torch.library.custom_op("commtrace_bench::sleep", mutates_args=())
def sleeping(tensor: Tensor, seconds: float) -> Tensor:
    """Return a copy after some time: an operator of known length."""
    time.sleep(seconds)
    return tensor.clone()


def work(milliseconds: float) -> None:
    """Take so long."""
    time.sleep(milliseconds / 1000)


class Sleeping(nn.Module):
    """A layer of known length."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.milliseconds = milliseconds

    def forward(self, tensor: Tensor) -> Tensor:
        """Take so long."""
        return sleeping(tensor, self.milliseconds / 1000)


class Place:
    """A rank of a program.

    Attributes:
        rank: Its number.
        size: Number of ranks.
        recording: The recording, for regions; None without one.
    """

    def __init__(self, rank: int, size: int, recording: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.recording = recording

    def region(self, name: str) -> Any:
        """Return a region of the recording."""
        return self.recording.region(name) if self.recording else nullcontext()

    def either(self, first: float, others: float) -> None:
        """Work for a time that depends on the rank."""
        work(first if self.rank == 0 else others)


def straggler(place: Place) -> Step:
    """Rank 1 takes longer before it reduces."""
    gradient = torch.ones(MIB // 4)

    def step(costs: Set[str]) -> None:
        work(20 + 15 * ("straggler" in costs and place.rank == 1))
        gradient.mul_(0.5)
        dist.all_reduce(gradient)
        work(10)

    return step


def needless_gather(place: Place) -> Step:
    """All ranks gather parameters that no rank uses."""
    shard = torch.ones(8 * MIB)
    whole = torch.empty(place.size * len(shard))
    loss = torch.ones(1)

    def step(costs: Set[str]) -> None:
        work(15)
        if "gather" in costs:
            dist.all_gather_into_tensor(whole, shard)
        work(15)
        dist.all_reduce(loss.mul_(0.5))

    return step


def reduced_twice(place: Place) -> Step:
    """Gradients are reduced again."""
    gradient = torch.ones(8 * MIB)

    def step(costs: Set[str]) -> None:
        work(15)
        gradient.mul_(0.25)
        dist.all_reduce(gradient)
        if "again" in costs:
            with place.region("again"):
                dist.all_reduce(gradient)
        work(10)
        gradient.add_(1)

    return step


def small_messages(place: Place) -> Step:
    """Each of many gradients is reduced by itself, or all as one."""
    gradients = torch.ones(64, 1024)

    def step(costs: Set[str]) -> None:
        work(20)
        gradients.mul_(0.5)
        if "single" in costs:
            for each in gradients:
                dist.all_reduce(each)
        else:
            dist.all_reduce(gradients)
        gradients.add_(1)
        work(10)

    return step


def late_prefetch(place: Place) -> Step:
    """Parameters are gathered when they are used, or while the layer before runs."""
    shard = torch.ones(4 * MIB)
    whole = torch.empty(place.size * len(shard))

    def step(costs: Set[str]) -> None:
        shard.mul_(1.01)
        if "late" in costs:
            place.either(30, 15)
            dist.all_gather_into_tensor(whole, shard)
        else:
            pending: Any = dist.all_gather_into_tensor(whole, shard, async_op=True)
            place.either(30, 15)
            pending.wait()
        whole.sum()
        place.either(15, 30)
        dist.barrier()

    return step


def blocking_receive(place: Place) -> Step:
    """A rank receives before work that does not need what it receives, or meanwhile."""
    message = torch.ones(MIB)

    def step(costs: Set[str]) -> None:
        if place.rank == 0:
            work(20)
            message.mul_(0.5)
            dist.send(message, 1)
            work(5)
        elif "blocking" in costs:
            dist.recv(message, 0)
            work(20)
            message.add_(1)
        else:
            pending: Any = dist.irecv(message, 0)
            work(20)
            pending.wait()
            message.add_(1)
        dist.barrier()

    return step


def waited_at_once(place: Place) -> Step:
    """A reduction is waited for as soon as it is issued, or where its result is used."""
    gradient = torch.ones(2 * MIB)

    def step(costs: Set[str]) -> None:
        place.either(10, 20)
        gradient.mul_(0.5)
        pending: Any = dist.all_reduce(gradient, async_op=True)
        if "at once" in costs:
            pending.wait()
        place.either(25, 15)
        pending.wait()
        gradient.add_(1)
        dist.barrier()

    return step


def barriers(place: Place) -> Step:
    """A barrier between two pieces of work; each rank has a long and a short piece."""
    loss = torch.ones(1)

    def step(costs: Set[str]) -> None:
        place.either(25, 10)
        if "barrier" in costs:
            dist.barrier()
        place.either(10, 25)
        dist.all_reduce(loss.mul_(0.5))

    return step


def logged_loss(place: Place) -> Step:
    """The loss is reduced and read in the middle of each step."""
    loss, gradient = torch.ones(1), torch.ones(MIB)

    def step(costs: Set[str]) -> None:
        place.either(10, 25)
        loss.mul_(0.5)
        if "item" in costs:
            with place.region("metrics"):
                dist.all_reduce(loss)
                loss.item()
        place.either(25, 10)
        gradient.mul_(0.5)
        dist.all_reduce(gradient)

    return step


def sent_buffers(place: Place) -> Step:
    """Buffers that no rank changes are broadcast in each step."""
    buffers, gradient = torch.ones(8 * MIB), torch.ones(MIB)

    def step(costs: Set[str]) -> None:
        if "buffers" in costs:
            dist.broadcast(buffers, 0)
        work(20)
        gradient.mul_(0.5)
        dist.all_reduce(gradient)

    return step


def in_float32(place: Place) -> Step:
    """Parameters are gathered in 32 bits, or in 16."""
    of_types = {
        dtype: (torch.ones(6 * MIB, dtype=dtype), torch.empty(place.size * 6 * MIB, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    }
    few = torch.ones(256)
    all_few = torch.empty(place.size * len(few))

    def step(costs: Set[str]) -> None:
        shard, whole = of_types[torch.float32 if "float32" in costs else torch.bfloat16]
        work(15)
        dist.all_gather_into_tensor(all_few, few)
        dist.all_gather_into_tensor(whole, shard)
        work(15)

    return step


def slow_layer(place: Place) -> Step:
    """One layer takes twice as long as it could."""
    layers = {
        is_slow: nn.Sequential(Sleeping(10), Sleeping(40 if is_slow else 20), Sleeping(10))
        for is_slow in (True, False)
    }
    loss = torch.ones(16)

    def step(costs: Set[str]) -> None:
        layers["slow" in costs](loss)
        dist.all_reduce(loss.mul_(0.5))

    return step


def pipeline(place: Place, num_micro_batches: int = 4) -> Step:
    """The second stage of a pipeline takes twice as long as the first."""
    message = torch.ones(MIB // 4)
    gradient = torch.ones(MIB // 4)

    def step(costs: Set[str]) -> None:
        longer = 10 if "slow" in costs else 0
        for _ in range(num_micro_batches):
            if place.rank == 0:
                work(10)
                message.add_(1)
                dist.send(message, 1)
            else:
                dist.recv(message, 0)
                message.add_(1)
                work(10 + longer)
        for _ in range(num_micro_batches):
            if place.rank == 1:
                work(10 + longer)
                gradient.add_(1)
                dist.send(gradient, 0)
            else:
                dist.recv(gradient, 1)
                gradient.add_(1)
                work(10)

    return step


def objects(place: Place) -> Step:
    """Ranks gather Python objects in each step."""
    metrics = {"loss": [0.5] * 1000}
    gradient = torch.ones(MIB)

    def step(costs: Set[str]) -> None:
        place.either(20, 10)
        if "objects" in costs:
            found: list[Any] = [None] * place.size
            with place.region("objects"):
                dist.all_gather_object(found, metrics)
        place.either(10, 20)
        gradient.mul_(0.5)
        dist.all_reduce(gradient)

    return step


def ring(place: Place) -> Step:
    """Ranks of a ring send what they have after they have received, or before."""
    mine, theirs = torch.ones(MIB // 16), torch.ones(MIB // 16)
    after, before = (place.rank + 1) % place.size, (place.rank - 1) % place.size

    def step(costs: Set[str]) -> None:
        mine.mul_(0.5)
        work(5)
        pending: Any = None
        if "serial" not in costs or place.rank == 0:
            pending = dist.isend(mine, after)
        dist.recv(theirs, before)
        work(8)
        theirs.add_(1)
        if pending is None:
            pending = dist.isend(mine, after)
        pending.wait()
        dist.barrier()

    return step


def several(place: Place) -> Step:
    """Four costs at once, each removed by one change."""
    gradient, message = torch.ones(MIB), torch.ones(MIB // 4)
    metrics = {"loss": [0.5] * 1000}

    def step(costs: Set[str]) -> None:
        work(15 + 20 * ("straggler" in costs and place.rank == 1))
        gradient.mul_(0.5)
        dist.all_reduce(gradient)
        place.either(10, 22)
        if "barrier" in costs:
            with place.region("between"):
                dist.barrier()
        place.either(22, 10)
        if "objects" in costs:
            found: list[Any] = [None] * place.size
            with place.region("objects"):
                dist.all_gather_object(found, metrics)
        _pass_on(place, message, is_blocking="blocking" in costs)
        dist.barrier()

    return step


def _pass_on(place: Place, message: Tensor, *, is_blocking: bool) -> None:
    if place.rank == 0:
        work(6)
        message.mul_(0.5)
        dist.send(message, 1)
    elif is_blocking:
        dist.recv(message, 0)
        work(6)
        message.add_(1)
    else:
        pending: Any = dist.irecv(message, 0)
        work(6)
        pending.wait()
        message.add_(1)


PROGRAMS: dict[str, Callable[[Place], Step]] = {
    "straggler": straggler,
    "needless gather": needless_gather,
    "reduced twice": reduced_twice,
    "small messages": small_messages,
    "late prefetch": late_prefetch,
    "blocking receive": blocking_receive,
    "waited at once": waited_at_once,
    "barriers": barriers,
    "logged loss": logged_loss,
    "sent buffers": sent_buffers,
    "in float32": in_float32,
    "slow layer": slow_layer,
    "pipeline": pipeline,
    "objects": objects,
    "ring": ring,
    "several": several,
}
