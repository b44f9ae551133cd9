"""A process group whose ranks are threads of this process.

Every collective first goes through c10d's own operator, with a backend that does nothing, so that
dispatch modes and interceptors of these operators see it. Then the rank's tensors join an
`InFlight`, and the last rank to join moves the data. Only waiting gives the turn to another rank,
so asynchronous collectives, sends and receives behave as over a real network. Ranks that disagree
about a collective get an error that names both calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from dtensor_core.testing.in_flight import InFlight, SharedGroup, Transfer
from dtensor_core.testing.moves import CollectiveTerms, RankArguments
from dtensor_core.testing.scheduler import Scheduler
from dtensor_core.torch_internals import groups


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


class ThreadGroup(groups.ProcessGroup):
    """A rank's view of a group of threads.

    The methods are those that torch's Python process groups override. They must be functions of
    exactly these names that call `super()` themselves, since pybind11 uses the name to distinguish
    a call of the base from a call of the override.
    """

    def __init__(
        self, rank: int, global_rank: int, shared: SharedGroup, scheduler: Scheduler
    ) -> None:
        size = len(shared.ranks)
        super().__init__(rank, size)  # pyright: ignore[reportCallIssue]
        options: Any = groups.FakeProcessGroup.Options()  # pyright: ignore[reportCallIssue]
        options.error_on_collective = True  # a path that bypasses the overrides must not be silent
        self._options = options
        backend = groups.FakeProcessGroup._create_internal(rank, size, options)  # pyright: ignore
        custom = groups.ProcessGroup.BackendType.CUSTOM
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), custom, backend)
        self._set_default_backend(custom)
        self.shared = shared
        self.scheduler = scheduler
        self.global_rank = global_rank
        self._group_rank = rank

    def _begin(self, opts: Any = None, default: Callable[[], Any] | None = None) -> Any:
        """Enable the pass through c10d's operator; return the options, or the defaults."""
        self.scheduler.check_thread(self.global_rank)
        self._options.error_on_collective = False
        return default() if opts is None and default else opts

    def _join(
        self, kind: str, opts: Any, shapes: Any, outputs: Any, inputs: Any = (), splits: Any = ()
    ) -> ThreadWork:
        # The pass through c10d's operator is over: any other use of the idle backend is an error.
        self._options.error_on_collective = True
        reduce_op = opts.reduceOp.op if hasattr(opts, "reduceOp") else None
        terms = CollectiveTerms(kind, reduce_op, getattr(opts, "rootRank", None), shapes)
        part = RankArguments(outputs, inputs, *splits)
        exchange = self.shared.join(self._group_rank, terms, part)
        if exchange.done:
            self.scheduler.wake(self.shared.ranks, exchange)
        return ThreadWork(self, exchange, _flat(outputs))

    def allreduce(self, tensors, opts=None):
        opts = self._begin(opts, groups.AllreduceOptions)
        super().allreduce(tensors, opts)
        return self._join("all_reduce", opts, _shapes(tensors), tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        opts = self._begin(opts, groups.AllreduceCoalescedOptions)
        super().allreduce_coalesced(tensors, opts)
        return self._join("all_reduce", opts, _shapes(tensors), tensors)

    def reduce(self, tensors, opts=None):
        opts = self._begin(opts, groups.ReduceOptions)
        super().reduce(tensors, opts)
        return self._join("reduce", opts, _shapes(tensors), tensors)

    def broadcast(self, tensors, opts=None):
        opts = self._begin(opts, groups.BroadcastOptions)
        super().broadcast(tensors, opts)
        return self._join("broadcast", opts, _shapes(tensors), tensors)

    def allgather(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.AllgatherOptions)
        super().allgather(outputs, inputs, opts)
        return self._join("all_gather", opts, _dtypes(inputs), outputs, inputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.AllgatherOptions)
        super().allgather_coalesced(outputs, inputs, opts)
        return self._join("all_gather_coalesced", opts, _shapes(inputs), outputs, inputs)

    def all_gather_single(self, output, inputs, opts=None):
        opts = self._begin(opts, groups.AllgatherOptions)
        super().all_gather_single(output, inputs, opts)
        return self._join("all_gather_single", opts, _shapes([inputs]), [output], [inputs])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.AllgatherOptions)
        super().all_gather_single_coalesced(outputs, inputs, opts)
        return self._join("all_gather_single", opts, _shapes(inputs), outputs, inputs)

    def gather(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.GatherOptions)
        super().gather(outputs, inputs, opts)
        return self._join("gather", opts, _dtypes(inputs), _flat(outputs), inputs)

    def scatter(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.ScatterOptions)
        super().scatter(outputs, inputs, opts)
        return self._join("scatter", opts, _dtypes(outputs), outputs, _flat(inputs))

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.ReduceScatterOptions)
        super().reduce_scatter(outputs, inputs, opts)
        return self._join("reduce_scatter", opts, _shapes(_flat(inputs)), outputs, inputs)

    def reduce_scatter_single(self, output, inputs, opts=None):
        opts = self._begin(opts, groups.ReduceScatterOptions)
        super().reduce_scatter_single(output, inputs, opts)
        return self._join("reduce_scatter_single", opts, _shapes([inputs]), [output], [inputs])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.ReduceScatterOptions)
        super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        return self._join("reduce_scatter_single", opts, _shapes(inputs), outputs, inputs)

    def all_to_all_single(self, output, inputs, output_splits, input_splits, opts=None):
        opts = self._begin(opts, groups.AllToAllOptions)
        if inputs.size(0) == 0:  # the idle backend refuses to fill an output from nothing
            idle = [0] * self.size()
            super().all_to_all_single(inputs, inputs, idle, idle, opts)
        else:
            super().all_to_all_single(output, inputs, output_splits, input_splits, opts)
        splits = output_splits, input_splits
        return self._join("all_to_all_single", opts, _dtypes([inputs]), [output], [inputs], splits)

    def alltoall(self, outputs, inputs, opts=None):
        opts = self._begin(opts, groups.AllToAllOptions)
        super().alltoall(outputs, inputs, opts)
        return self._join("all_to_all", opts, _dtypes(inputs[:1]), outputs, inputs)

    def barrier(self, opts=None):
        opts = self._begin(opts, groups.BarrierOptions)
        super().barrier(opts)
        return self._join("barrier", opts, (), ())

    def send(self, tensors, target, tag):
        self._begin()
        super().send(tensors, target, tag)
        self._options.error_on_collective = True
        transfer = self.shared.send(self._group_rank, target, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def recv(self, tensors, source, tag):
        self._begin()
        super().recv(tensors, source, tag)
        self._options.error_on_collective = True
        transfer = self.shared.receive(source, self._group_rank, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def recv_anysource(self, tensors, tag):
        self._begin()
        super().recv_anysource(tensors, tag)
        self._options.error_on_collective = True
        transfer = self.shared.receive(None, self._group_rank, tag, tensors[0])
        return self._transfer(transfer, tensors)

    def _transfer(self, transfer: Transfer, tensors: list[torch.Tensor]) -> ThreadWork:
        if transfer.done:
            self.scheduler.wake(self.shared.ranks, transfer)
        return ThreadWork(self, transfer, tensors)


def _flat(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors of a list, or of a list of lists."""
    return [t for each in tensors for t in (each if isinstance(each, (list, tuple)) else [each])]


def _shapes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def _dtypes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, None) for tensor in tensors)
