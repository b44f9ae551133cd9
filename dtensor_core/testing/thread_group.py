"""A process group whose ranks are threads of this process.

Every collective first goes through c10d's own operator, with a backend that does nothing, so that
dispatch modes and interceptors of these operators see it. Then the rank's tensors join an
`InFlight`, and the last rank to join moves the data. Only waiting gives the turn to another rank,
so asynchronous collectives, sends and receives behave as over a real network. Ranks that disagree
about a collective get an error that names both calls.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dtensor_core.testing.in_flight import InFlight, SharedGroup, Transfer
from dtensor_core.testing.moves import CollectiveTerms, RankArguments
from dtensor_core.testing.scheduler import Scheduler
from dtensor_core.torch_internals.groups import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    FakeProcessGroup,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)


class ThreadWork(dist.Work):
    """Handle of a collective or transfer; waiting on it lets other ranks run."""

    def __init__(
        self,
        group: ThreadGroup,
        awaited: InFlight | Transfer,
        tensors: list[torch.Tensor],
    ) -> None:
        super().__init__()
        self._group = group
        self._awaited = awaited
        self._tensors = tensors

    def wait(self, timeout: object = None) -> bool:
        """Return once the data has arrived."""
        if not self._awaited.done:
            self._group.scheduler.wait(self._group.global_rank, self._awaited)
        return True

    def synchronize(self) -> None:
        """Return once the data has arrived."""
        self.wait()

    def block_current_stream(self) -> None:
        """Return once the data has arrived."""
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """Return a completed future; waits first, since a future can't give the turn away."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def is_completed(self) -> bool:
        """True if the data has arrived."""
        return self._awaited.done

    is_success = is_completed

    def exception(self) -> None:
        """Return None: errors are raised where they occur."""

    def result(self) -> list[torch.Tensor]:
        """Return the output tensors."""
        return self._tensors

    def _source_rank(self) -> int:
        source = self._awaited.source if isinstance(self._awaited, Transfer) else None
        return -1 if source is None else source

    source_rank = _source_rank


class ThreadGroup(ProcessGroup):
    """One rank's view of a group of threads.

    The methods are those that torch's Python process groups override. They must be functions of
    exactly these names that call `super()` themselves, since pybind11 uses the name to tell a call
    of the base from a call of the override.
    """

    def __init__(
        self, rank: int, global_rank: int, shared: SharedGroup, scheduler: Scheduler
    ) -> None:
        size = len(shared.ranks)
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        options: Any = FakeProcessGroup.Options()  # pyright: ignore[reportCallIssue]
        options.error_on_collective = True  # a path that bypasses the overrides must not be silent
        self._options = options
        backend = FakeProcessGroup._create_internal(rank, size, options)  # pyright: ignore
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self.shared = shared
        self.scheduler = scheduler
        self.global_rank = global_rank
        self._group_rank = rank

    def _announce(self) -> None:
        """Enable the pass through c10d's operator."""
        self.scheduler.check_thread(self.global_rank)
        self._options.error_on_collective = False

    def _join(
        self, terms: CollectiveTerms, part: RankArguments, tensors: list[torch.Tensor]
    ) -> ThreadWork:
        # The pass through c10d's operator is over: any other use of the idle backend is an error.
        self._options.error_on_collective = True
        exchange = self.shared.join(self._group_rank, terms, part)
        if exchange.done:
            self.scheduler.wake(self.shared.ranks, exchange)
        return ThreadWork(self, exchange, tensors)

    def allreduce(self, tensors, opts=None):
        opts = opts or AllreduceOptions()
        self._announce()
        super().allreduce(tensors, opts)
        terms = CollectiveTerms("all_reduce", _op(opts), None, _shapes(tensors))
        return self._join(terms, RankArguments(outputs=tensors), tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or AllreduceCoalescedOptions()
        self._announce()
        super().allreduce_coalesced(tensors, opts)
        terms = CollectiveTerms("all_reduce", _op(opts), None, _shapes(tensors))
        return self._join(terms, RankArguments(outputs=tensors), tensors)

    def reduce(self, tensors, opts=None):
        opts = opts or ReduceOptions()
        self._announce()
        super().reduce(tensors, opts)
        terms = CollectiveTerms("reduce", _op(opts), opts.rootRank, _shapes(tensors))
        return self._join(terms, RankArguments(outputs=tensors), tensors)

    def broadcast(self, tensors, opts=None):
        opts = opts or BroadcastOptions()
        self._announce()
        super().broadcast(tensors, opts)
        terms = CollectiveTerms("broadcast", None, opts.rootRank, _shapes(tensors))
        return self._join(terms, RankArguments(outputs=tensors), tensors)

    def allgather(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().allgather(outputs, inputs, opts)
        terms = CollectiveTerms("all_gather", None, None, _dtypes(inputs))
        return self._join(terms, RankArguments(outputs, inputs), [t for o in outputs for t in o])

    def allgather_coalesced(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().allgather_coalesced(outputs, inputs, opts)
        terms = CollectiveTerms("all_gather_coalesced", None, None, _shapes(inputs))
        return self._join(terms, RankArguments(outputs, inputs), [t for o in outputs for t in o])

    def all_gather_single(self, output, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().all_gather_single(output, inputs, opts)
        terms = CollectiveTerms("all_gather_single", None, None, _shapes([inputs]))
        return self._join(terms, RankArguments([output], [inputs]), [output])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().all_gather_single_coalesced(outputs, inputs, opts)
        terms = CollectiveTerms("all_gather_single", None, None, _shapes(inputs))
        return self._join(terms, RankArguments(outputs, inputs), outputs)

    def gather(self, outputs, inputs, opts=None):
        opts = opts or GatherOptions()
        self._announce()
        super().gather(outputs, inputs, opts)
        terms = CollectiveTerms("gather", None, opts.rootRank, _dtypes(inputs))
        flat = [t for o in outputs for t in o]
        return self._join(terms, RankArguments(flat, inputs), flat)

    def scatter(self, outputs, inputs, opts=None):
        opts = opts or ScatterOptions()
        self._announce()
        super().scatter(outputs, inputs, opts)
        terms = CollectiveTerms("scatter", None, opts.rootRank, _dtypes(outputs))
        return self._join(terms, RankArguments(outputs, [t for i in inputs for t in i]), outputs)

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter(outputs, inputs, opts)
        shapes = _shapes([t for i in inputs for t in i])
        terms = CollectiveTerms("reduce_scatter", _op(opts), None, shapes)
        return self._join(terms, RankArguments(outputs, inputs), outputs)

    def reduce_scatter_single(self, output, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter_single(output, inputs, opts)
        terms = CollectiveTerms("reduce_scatter_single", _op(opts), None, _shapes([inputs]))
        return self._join(terms, RankArguments([output], [inputs]), [output])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        terms = CollectiveTerms("reduce_scatter_single", _op(opts), None, _shapes(inputs))
        return self._join(terms, RankArguments(outputs, inputs), outputs)

    def all_to_all_single(self, output, inputs, output_splits, input_splits, opts=None):
        opts = opts or AllToAllOptions()
        self._announce()
        if inputs.size(0) == 0:  # the idle backend refuses to fill an output from nothing
            idle = [0] * self.size()
            super().all_to_all_single(inputs, inputs, idle, idle, opts)
        else:
            super().all_to_all_single(output, inputs, output_splits, input_splits, opts)
        terms = CollectiveTerms("all_to_all_single", None, None, _dtypes([inputs]))
        part = RankArguments([output], [inputs], output_splits, input_splits)
        return self._join(terms, part, [output])

    def alltoall(self, outputs, inputs, opts=None):
        opts = opts or AllToAllOptions()
        self._announce()
        super().alltoall(outputs, inputs, opts)
        terms = CollectiveTerms("all_to_all", None, None, _dtypes(inputs[:1]))
        return self._join(terms, RankArguments(outputs, inputs), outputs)

    def barrier(self, opts=None):
        opts = opts or BarrierOptions()
        self._announce()
        super().barrier(opts)
        return self._join(CollectiveTerms("barrier"), RankArguments(), [])

    def send(self, tensors, target, tag):
        self._announce()
        super().send(tensors, target, tag)
        self._options.error_on_collective = True
        transfer = self.shared.send(self._group_rank, target, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def recv(self, tensors, source, tag):
        self._announce()
        super().recv(tensors, source, tag)
        self._options.error_on_collective = True
        transfer = self.shared.receive(source, self._group_rank, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def recv_anysource(self, tensors, tag):
        self._announce()
        super().recv_anysource(tensors, tag)
        self._options.error_on_collective = True
        transfer = self.shared.receive(None, self._group_rank, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def _transfer(self, transfer: Transfer, tensors: list[torch.Tensor]) -> ThreadWork:
        if transfer.done:
            self.scheduler.wake(self.shared.ranks, transfer)
        return ThreadWork(self, transfer, tensors)


def _op(opts: Any) -> Any:
    return opts.reduceOp.op


def _shapes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def _dtypes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, None) for tensor in tensors)
