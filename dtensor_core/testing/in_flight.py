"""Collectives and transfers in flight between the ranks of a thread group.

A rank joins the collective that is its next on the group; the last rank to join moves the data.
Ranks that disagree get an error that names both calls. Nothing here waits: callers that have to
wait check `done`.
"""

from __future__ import annotations

import torch

from dtensor_core.testing.moves import (
    MOVES,
    CollectiveTerms,
    RankArguments,
    copy_each,
    have_memory,
)
from dtensor_core.torch_internals.dispatcher import without_torch_dispatch, without_torch_function


class CollectiveMismatch(RuntimeError):
    """The ranks of a group did not call the same collective, or their tensors do not match."""


class InFlight:
    """A collective in flight: collects the ranks' parts and moves the data once all are there."""

    __slots__ = ("done", "group", "number", "parts", "terms")

    def __init__(self, group: SharedGroup, number: int, terms: CollectiveTerms) -> None:
        self.group = group
        self.number = number
        self.terms = terms
        self.parts: dict[int, RankArguments] = {}
        self.done = False

    def __str__(self) -> str:
        missing = [r for i, r in enumerate(self.group.ranks) if i not in self.parts]
        waits = f", still without rank {', '.join(map(str, missing))}" if missing else ""
        return f"{self.terms} (call {self.number} on {self.group}{waits})"

    @property
    def beginner(self) -> int:
        """The first group rank to join."""
        return next(iter(self.parts))

    def move(self) -> None:
        """Fill in every rank's outputs."""
        parts = [self.parts[rank] for rank in range(len(self.group.ranks))]
        if all(have_memory((part.outputs, part.inputs)) for part in parts):
            _quietly(MOVES[self.terms.kind], parts, self.terms)
        self.done = True


class Transfer:
    """A send and its matching receive, whichever came first."""

    __slots__ = ("done", "group", "receive", "send", "source", "tag", "target")

    def __init__(self, group: SharedGroup, source: int | None, target: int, tag: int) -> None:
        self.group = group
        self.source = source  # a group rank; None as long as any is possible
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

    def connects(self, source: int | None, target: int, tag: int) -> bool:
        """True if the transfer is between these group ranks; either source may be any."""
        same_source = self.source == source or self.source is None or source is None
        return same_source and (self.target, self.tag) == (target, tag)

    @property
    def beginner(self) -> int:
        """The group rank that came first."""
        return self.target if self.source is None or self.send is None else self.source

    def move(self) -> None:
        """Copy the sent tensor into the receiver's tensor."""
        if self.send is None or self.receive is None:
            raise CollectiveMismatch(f"{self} has no peer")
        if self.send.numel() != self.receive.numel() or self.send.dtype != self.receive.dtype:
            raise CollectiveMismatch(
                f"{self}: {self.send.dtype}[{self.send.numel()}] is sent where "
                f"{self.receive.dtype}[{self.receive.numel()}] is expected"
            )
        if have_memory((self.receive, self.send)):
            _quietly(copy_each, [self.receive], [self.send])
        self.done = True


class SharedGroup:
    """State that the ranks of a group share: their collectives and transfers in flight."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name = name
        self.ranks = ranks
        self.count_anew()
        self._exchanges: dict[int, InFlight] = {}
        self._transfers: list[Transfer] = []

    def __str__(self) -> str:
        return f"group {self.name!r} of ranks {', '.join(map(str, self.ranks))}"

    def count_anew(self) -> None:
        """Restart the call numbers of every rank at 0; nothing may be in flight."""
        self._calls = [0] * len(self.ranks)

    @property
    def unfinished(self) -> list[tuple[int, str]]:
        """The operations that not all ranks joined: the rank that began each, and a description."""
        begun = [*self._exchanges.values(), *self._transfers]
        return [(self.ranks[each.beginner], str(each)) for each in begun]

    def join(self, rank: int, terms: CollectiveTerms, part: RankArguments) -> InFlight:
        """Join this rank's next collective on the group; moves the data if it is complete."""
        number = self._calls[rank]
        self._calls[rank] += 1
        exchange = self._exchanges.get(number)
        if exchange is None:
            exchange = self._exchanges[number] = InFlight(self, number, terms)
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
        """Begin or complete the transfer of `tensor` between two group ranks."""
        transfer = self._transfer("send", source, target, tag, tensor)
        transfer.source = source
        return self._moved(transfer)

    def receive(self, source: int | None, target: int, tag: int, tensor: torch.Tensor) -> Transfer:
        """Begin or complete the transfer into `tensor`; from any rank if `source` is None."""
        return self._moved(self._transfer("receive", source, target, tag, tensor))

    def _transfer(
        self, side: str, source: int | None, target: int, tag: int, tensor: torch.Tensor
    ) -> Transfer:
        """Give a tensor to the first transfer that lacks it, or to a new transfer."""
        for transfer in self._transfers:
            if getattr(transfer, side) is None and transfer.connects(source, target, tag):
                break
        else:
            transfer = Transfer(self, source, target, tag)
            self._transfers.append(transfer)
        setattr(transfer, side, tensor)
        return transfer

    def _moved(self, transfer: Transfer) -> Transfer:
        """Move the data of a transfer that has both sides."""
        if transfer.send is not None and transfer.receive is not None:
            self._transfers.remove(transfer)
            transfer.move()
        return transfer


def _quietly(move, *args) -> None:
    """Move data as a network does: unseen by autograd, version counters, modes and subclasses."""
    with torch.inference_mode(), without_torch_function(), without_torch_dispatch():
        move(*args)
