"""Claims of `commtrace whatif` that can be checked: a change, and the program with it made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A change that takes a cost of a program away.

    Attributes:
        program: Key of `programs.PROGRAMS`.
        cost: The cost that is taken away.
        changes: Texts of the change.
        costs: All costs of the program as it is recorded.
        num_ranks: Number of ranks.
        blocked: Part of the changed calls' blocked time that the naive estimate subtracts.
    """

    program: str
    cost: str
    changes: tuple[str, ...]
    costs: frozenset[str] = frozenset()
    num_ranks: int = 2
    blocked: float = 1.0

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{self.program}: {self.cost}" if len(self.before) > 1 else self.program

    @property
    def before(self) -> frozenset[str]:
        """Costs of the program that is recorded."""
        return self.costs or frozenset({self.cost})

    @property
    def after(self) -> frozenset[str]:
        """Costs that are left."""
        return self.before - {self.cost}


_FOUR = frozenset({"straggler", "barrier", "objects", "blocking"})

CLAIMS = (
    Claim("straggler", "straggler", ("balance",)),
    Claim("needless gather", "gather", ("remove where kind=all_gather",)),
    Claim("reduced twice", "again", ("remove where region=again",)),
    Claim("small messages", "single", ("merge where kind=all_reduce",), blocked=63 / 64),
    Claim("late prefetch", "late", ("overlap where kind=all_gather",)),
    Claim("blocking receive", "blocking", ("async where kind=recv",)),
    Claim("waited at once", "at once", ("async where kind=all_reduce",)),
    Claim("barriers", "barrier", ("remove where kind=barrier",)),
    Claim("logged loss", "item", ("remove where region=metrics",)),
    Claim("sent buffers", "buffers", ("remove where kind=broadcast",)),
    Claim("in float32", "float32", ("payload *0.5 where kind=all_gather",), blocked=0.5),
    Claim("slow layer", "slow", ("compute *0.5 where module=1",), blocked=0.5),
    Claim("pipeline", "slow", ("compute *0.5 where rank=1",), blocked=0.5),
    Claim("objects", "objects", ("remove where region=objects",)),
    Claim("ring", "serial", ("earlier where kind=send",), num_ranks=4),
    Claim("several", "straggler", ("balance where kind=all_reduce",), _FOUR),
    Claim("several", "barrier", ("remove where region=between",), _FOUR),
    Claim("several", "objects", ("remove where region=objects",), _FOUR),
    Claim("several", "blocking", ("async where kind=recv",), _FOUR),
)  # fmt: skip
