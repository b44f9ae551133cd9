"""The counter counts each collective once, on the thread that issues it, with its volume."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from benchmarks.counting import Sent, counter
from dtensor_core.testing import run_threads


def _sent(communicate) -> list[Sent]:
    """Counts of each of four ranks."""

    def body() -> Sent:
        with count.counting() as sent:
            communicate()
        dist.barrier()
        return sent

    with counter() as count:
        return run_threads(body, 4)


def test_an_all_reduce_sends_its_tensor_nearly_twice() -> None:
    sent = _sent(lambda: dist.all_reduce(torch.ones(8)))
    assert sent == [Sent(1, 8, 48)] * 4


def test_a_functional_collective_counts_once_and_an_all_gather_by_its_output() -> None:
    sent = _sent(lambda: funcol.all_gather_single(torch.ones(2), 0, dist.group.WORLD).sum())
    assert sent == [Sent(1, 8, 24)] * 4


def test_what_a_rank_keeps_in_an_all_to_all_is_not_sent() -> None:
    def exchange() -> None:
        rank = dist.get_rank()
        sizes = [2 if rank == 0 else 0, 1, 0, 0]
        received = [2 if rank == 0 else 0] + [0] * 3 if rank != 1 else [1] * 4
        dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sizes)), received, sizes)

    assert _sent(exchange) == [Sent(1, 3, 4), Sent(1, 1, 0), Sent(1, 1, 4), Sent(1, 1, 4)]


def test_nothing_is_counted_outside() -> None:
    def body() -> int:
        with count.counting() as sent:
            pass
        dist.all_reduce(torch.ones(8))
        return sent.collectives

    with counter() as count:
        assert run_threads(body, 4) == [0] * 4
