"""A process group whose ranks are threads of this process.

Every collective goes through c10d's own operator first (with a backend that does nothing), so
dispatch modes and whatever intercepts those operators see it as they see any other; then the
rank's tensors join an `Exchange`, and the last rank to join moves the data (`exchange.MOVES`).
Only waiting gives the turn to another rank, so asynchronous collectives, sends and receives behave
as over a real network. Ranks that disagree about a collective get an error that names both calls.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
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

from dtensor_core.testing.exchange import MOVES, Part, Terms, copy_each
from dtensor_core.testing.turns import Turns


class CollectiveMismatch(RuntimeError):
    """The ranks of a group did not call the same collective, or not with tensors that fit."""


class Exchange:
    """One collective in flight: collects the parts, moves the data when all are there."""

    __slots__ = ("done", "group", "number", "parts", "terms")

    def __init__(self, group: SharedGroup, number: int, terms: Terms) -> None:
        self.group = group
        self.number = number
        self.terms = terms
        self.parts: dict[int, Part] = {}
        self.done = False

    def __str__(self) -> str:
        missing = [r for i, r in enumerate(self.group.ranks) if i not in self.parts]
        waits = f", still without rank {', '.join(map(str, missing))}" if missing else ""
        return f"{self.terms} (call {self.number} on {self.group}{waits})"

    @property
    def beginner(self) -> int:
        """The group rank that came first."""
        return next(iter(self.parts))

    def move(self) -> None:
        """Fill in every rank's outputs."""
        parts = [self.parts[rank] for rank in range(len(self.group.ranks))]
        _quietly(MOVES[self.terms.kind], parts, self.terms)
        self.done = True


class Transfer:
    """A send and the receive that matches it, whichever came first."""

    __slots__ = ("done", "group", "receive", "send", "source", "tag", "target")

    def __init__(self, group: SharedGroup, source: int | None, target: int, tag: int) -> None:
        self.group = group
        self.source = source  # a group rank; None while it may be any
        self.target = target
        self.tag = tag
        self.send: torch.Tensor | None = None
        self.receive: torch.Tensor | None = None
        self.done = False

    def __str__(self) -> str:
        ranks = self.group.ranks
        source = "any rank" if self.source is None else f"rank {ranks[self.source]}"
        kind = "send" if self.receive is None else "recv"
        peers = f"from {source} to rank {ranks[self.target]}"
        return f"{kind} {peers} with tag {self.tag} on {self.group}"

    @property
    def beginner(self) -> int:
        """The group rank that came first."""
        return self.target if self.source is None or self.send is None else self.source

    def move(self) -> None:
        """Copy what was sent into the receiver's tensor."""
        if self.send is None or self.receive is None:
            raise CollectiveMismatch(f"{self} has no peer")
        if self.send.numel() != self.receive.numel() or self.send.dtype != self.receive.dtype:
            raise CollectiveMismatch(
                f"{self}: {self.send.dtype}[{self.send.numel()}] is sent where "
                f"{self.receive.dtype}[{self.receive.numel()}] is expected"
            )
        _quietly(copy_each, [self.receive], [self.send])
        self.done = True


class SharedGroup:
    """What the ranks of one group have in common: their exchanges in flight."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name = name
        self.ranks = ranks
        self._calls = [0] * len(ranks)
        self._exchanges: dict[int, Exchange] = {}
        self._transfers: list[Transfer] = []

    def __str__(self) -> str:
        return f"group {self.name!r} of ranks {', '.join(map(str, self.ranks))}"

    @property
    def unfinished(self) -> list[tuple[int, str]]:
        """What was begun and never joined by all: by a rank, and what it is."""
        begun = [*self._exchanges.values(), *self._transfers]
        return [(self.ranks[each.beginner], str(each)) for each in begun]

    def join(self, rank: int, terms: Terms, part: Part) -> Exchange:
        """The exchange that is this rank's next on the group; moves the data if it is complete."""
        number = self._calls[rank]
        self._calls[rank] += 1
        exchange = self._exchanges.get(number)
        if exchange is None:
            exchange = self._exchanges[number] = Exchange(self, number, terms)
        elif exchange.terms != terms:
            first = self.ranks[exchange.beginner]
            raise CollectiveMismatch(
                f"call {number} on {self}: rank {self.ranks[rank]} calls {terms}, "
                f"rank {first} called {exchange.terms}"
            )
        exchange.parts[rank] = part
        if len(exchange.parts) == len(self.ranks):
            del self._exchanges[number]
            exchange.move()
        return exchange

    def send(self, source: int, target: int, tag: int, tensor: torch.Tensor) -> Transfer:
        """Begin, or complete, the transfer of `tensor` between two group ranks."""
        for transfer in self._transfers:
            if transfer.send is None and transfer.source in (source, None):
                if (transfer.target, transfer.tag) == (target, tag):
                    transfer.source, transfer.send = source, tensor
                    return self._complete(transfer)
        transfer = Transfer(self, source, target, tag)
        transfer.send = tensor
        self._transfers.append(transfer)
        return transfer

    def receive(self, source: int | None, target: int, tag: int, tensor: torch.Tensor) -> Transfer:
        """Begin, or complete, the transfer into `tensor`; from any rank if `source` is None."""
        for transfer in self._transfers:
            if transfer.receive is None and source in (transfer.source, None):
                if (transfer.target, transfer.tag) == (target, tag):
                    transfer.receive = tensor
                    return self._complete(transfer)
        transfer = Transfer(self, source, target, tag)
        transfer.receive = tensor
        self._transfers.append(transfer)
        return transfer

    def _complete(self, transfer: Transfer) -> Transfer:
        self._transfers.remove(transfer)
        transfer.move()
        return transfer


class ThreadWork(dist.Work):
    """The handle of a collective or transfer; waiting on it lets other ranks run."""

    def __init__(
        self,
        group: ThreadGroup,
        awaited: Exchange | Transfer,
        tensors: list[torch.Tensor],
    ) -> None:
        super().__init__()
        self._group = group
        self._awaited = awaited
        self._tensors = tensors

    def wait(self, timeout: object = None) -> bool:
        """Return once the data is there."""
        if not self._awaited.done:
            self._group.turns.wait(self._group.global_rank, self._awaited)
        return True

    synchronize = wait
    block_current_stream = wait

    def get_future(self) -> torch.futures.Future:
        """A completed future: waits first, since a future can't give the turn away."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def is_completed(self) -> bool:
        """Whether the data is there."""
        return self._awaited.done

    is_success = is_completed

    def exception(self) -> None:
        """Always None: what goes wrong is raised where it happens."""

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._tensors

    def _source_rank(self) -> int:
        source = self._awaited.source if isinstance(self._awaited, Transfer) else None
        return -1 if source is None else source

    source_rank = _source_rank


class ThreadGroup(ProcessGroup):
    """One rank's view of a group of threads.

    The methods are those that torch's Python process groups override, and must be functions of
    those very names that call `super()` themselves: that is how pybind11 tells a call of the base
    from a call of the override.
    """

    def __init__(self, rank: int, global_rank: int, shared: SharedGroup, turns: Turns) -> None:
        size = len(shared.ranks)
        super().__init__(rank, size)
        options = FakeProcessGroup.Options()
        options.error_on_collective = True  # a path around the overrides below must not be silent
        self._options = options
        backend = FakeProcessGroup._create_internal(rank, size, options)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self.shared = shared
        self.turns = turns
        self.global_rank = global_rank
        self._group_rank = rank

    def _announce(self) -> None:
        """Open the way through c10d's operator."""
        self.turns.check_thread(self.global_rank)
        self._options.error_on_collective = False

    def _join(self, terms: Terms, part: Part, tensors: list[torch.Tensor]) -> ThreadWork:
        self._options.error_on_collective = True
        exchange = self.shared.join(self._group_rank, terms, part)
        if exchange.done:
            self.turns.wake(self.shared.ranks, exchange)
        return ThreadWork(self, exchange, tensors)

    def allreduce(self, tensors, opts=None):
        opts = opts or AllreduceOptions()
        self._announce()
        super().allreduce(tensors, opts)
        terms = Terms("all_reduce", opts.reduceOp.op, None, _shapes(tensors))
        return self._join(terms, Part(outputs=tensors), tensors)

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or AllreduceCoalescedOptions()
        self._announce()
        super().allreduce_coalesced(tensors, opts)
        terms = Terms("all_reduce", opts.reduceOp.op, None, _shapes(tensors))
        return self._join(terms, Part(outputs=tensors), tensors)

    def reduce(self, tensors, opts=None):
        opts = opts or ReduceOptions()
        self._announce()
        super().reduce(tensors, opts)
        terms = Terms("reduce", opts.reduceOp.op, opts.rootRank, _shapes(tensors))
        return self._join(terms, Part(outputs=tensors), tensors)

    def broadcast(self, tensors, opts=None):
        opts = opts or BroadcastOptions()
        self._announce()
        super().broadcast(tensors, opts)
        terms = Terms("broadcast", None, opts.rootRank, _shapes(tensors))
        return self._join(terms, Part(outputs=tensors), tensors)

    def allgather(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().allgather(outputs, inputs, opts)
        terms = Terms("all_gather", None, None, _dtypes(inputs))
        return self._join(terms, Part(outputs, inputs), [t for o in outputs for t in o])

    def allgather_coalesced(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().allgather_coalesced(outputs, inputs, opts)
        terms = Terms("all_gather_coalesced", None, None, _shapes(inputs))
        return self._join(terms, Part(outputs, inputs), [t for o in outputs for t in o])

    def all_gather_single(self, output, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().all_gather_single(output, inputs, opts)
        terms = Terms("all_gather_single", None, None, _shapes([inputs]))
        return self._join(terms, Part([output], [inputs]), [output])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or AllgatherOptions()
        self._announce()
        super().all_gather_single_coalesced(outputs, inputs, opts)
        terms = Terms("all_gather_single", None, None, _shapes(inputs))
        return self._join(terms, Part(outputs, inputs), outputs)

    def gather(self, outputs, inputs, opts=None):
        opts = opts or GatherOptions()
        self._announce()
        super().gather(outputs, inputs, opts)
        terms = Terms("gather", None, opts.rootRank, _dtypes(inputs))
        flat = [t for o in outputs for t in o]
        return self._join(terms, Part(flat, inputs), flat)

    def scatter(self, outputs, inputs, opts=None):
        opts = opts or ScatterOptions()
        self._announce()
        super().scatter(outputs, inputs, opts)
        terms = Terms("scatter", None, opts.rootRank, _dtypes(outputs))
        return self._join(terms, Part(outputs, [t for i in inputs for t in i]), outputs)

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter(outputs, inputs, opts)
        shapes = _shapes([t for i in inputs for t in i])
        terms = Terms("reduce_scatter", opts.reduceOp.op, None, shapes)
        return self._join(terms, Part(outputs, inputs), outputs)

    def reduce_scatter_single(self, output, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter_single(output, inputs, opts)
        terms = Terms("reduce_scatter_single", opts.reduceOp.op, None, _shapes([inputs]))
        return self._join(terms, Part([output], [inputs]), [output])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or ReduceScatterOptions()
        self._announce()
        super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        terms = Terms("reduce_scatter_single", opts.reduceOp.op, None, _shapes(inputs))
        return self._join(terms, Part(outputs, inputs), outputs)

    def all_to_all_single(self, output, inputs, output_splits, input_splits, opts=None):
        opts = opts or AllToAllOptions()
        self._announce()
        if inputs.size(0) == 0:  # the idle backend refuses to fill an output from nothing
            idle = [0] * self.size()
            super().all_to_all_single(inputs, inputs, idle, idle, opts)
        else:
            super().all_to_all_single(output, inputs, output_splits, input_splits, opts)
        terms = Terms("all_to_all_single", None, None, _dtypes([inputs]))
        part = Part([output], [inputs], output_splits, input_splits)
        return self._join(terms, part, [output])

    def alltoall(self, outputs, inputs, opts=None):
        opts = opts or AllToAllOptions()
        self._announce()
        super().alltoall(outputs, inputs, opts)
        terms = Terms("all_to_all", None, None, _dtypes(inputs[:1]))
        return self._join(terms, Part(outputs, inputs), outputs)

    def barrier(self, opts=None):
        opts = opts or BarrierOptions()
        self._announce()
        super().barrier(opts)
        return self._join(Terms("barrier"), Part(), [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.barrier().wait()

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
            self.turns.wake(self.shared.ranks, transfer)
        return ThreadWork(self, transfer, tensors)


def _shapes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def _dtypes(tensors) -> tuple[tuple[torch.dtype, int | None], ...]:
    return tuple((tensor.dtype, None) for tensor in tensors)


def _quietly(move, *args) -> None:
    """Move data as a network would: unseen by autograd, version counters, modes and subclasses."""
    with torch.inference_mode(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        move(*args)
