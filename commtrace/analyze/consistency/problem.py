"""The `Problem` type: a fault, or a gap in the check; a row of the table `consistency`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from commtrace.analyze.run.program_folder import relative_to
from commtrace.schema import INSTANT, Column
from commtrace.units import contracted, text_of_ranks

COLUMNS = (
    Column("problem", str, "", "kind, reduce_op, root, dtype, size, missing call, extra call, ..."),
    Column("is_fault", bool, "", "an error in the program; otherwise a gap in the check"),
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column(
        "number",
        int,
        "",
        "number of the collective in the group, from 0 (dumps and logs: from 1, as SeqNum); -1 if "
        "none in particular",
    ),
    Column(
        "ranks",
        str,
        "",
        "blamed ranks, `1,3`; all that disagree if it is unknown which of them are wrong; empty if "
        "unknown",
        form="ranks",
    ),
    Column(
        "is_one_of_ranks",
        bool,
        "",
        "not all of these ranks are wrong, and it is unknown which are",
    ),
    Column("expected", str, "", "what the majority did"),
    Column("found", str, "", "what the others did"),
    Column("source", str, "", "source line of a blamed rank, or of an involved rank"),
    Column("explanation", str, "", "explanation in a sentence"),
    Column("at_ns", int, INSTANT, "arrival of the first rank; -1 unknown"),
)

DIFFERENT = {
    "kind": "kind", "reduce_op": "reduction", "root": "root", "dtype": "element type",
    "size": "size",
}  # fmt: skip
"""Properties in which the members of a call can differ, with their names in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of the table; the fields are `COLUMNS`, in order."""

    problem: str
    is_fault: bool
    group: str = ""
    mesh_axis: str = ""
    number: int = -1
    ranks: str
    is_one_of_ranks: bool = False
    expected: str = ""
    found: str
    source: str = ""
    explanation: str
    at_ns: int = -1

    def row(self, folder: str = "") -> tuple[object, ...]:
        """Return the values of the columns; the explanation adds if the blame is unknown.

        Args:
            folder: Folder of the program, to which paths are made relative.
        """
        ranks, unknown = ranks_in(self.ranks), ""
        if self.is_one_of_ranks:
            num = {2: "two", 3: "three"}.get(len(ranks), str(len(ranks)))
            unknown = (
                f" Which of the {num} ranks {'is' if len(ranks) == 2 else 'are'} wrong is unknown."
            )
        explanation = relative_to(folder, self.explanation + unknown)
        source = relative_to(folder, self.source)
        return astuple(replace(self, explanation=explanation, source=source))


def numbers_text(ranks: Iterable[int]) -> str:
    """Format ranks for programs: `0,1,3`."""
    return ",".join(str(int(rank)) for rank in sorted(ranks))


def fewer_of(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], bool]:
    """Return the smaller of two sides of ranks, and False; both if they are equal, and True."""
    if len(one) == len(other):
        return sorted([*one, *other]), True
    return sorted(min(one, other, key=len)), False


def ranks_in(text: str) -> list[int]:
    """Return the ranks of a cell."""
    return [int(rank) for rank in text.split(",") if rank]


def at_the_start(ranks: Iterable[int]) -> str:
    """Format ranks for the start of a sentence: `Ranks 0, 1, 3`."""
    text = text_of_ranks(ranks)
    return text[0].upper() + text[1:]


def call_text(kind: str, number: int, group: str, mesh_axis: str) -> str:
    """Format a collective for people: `all_reduce 17 of tp (group 3)`."""
    return f"{kind} {number} of {group_text(group, mesh_axis)}"


def group_text(group: str, mesh_axis: str) -> str:
    """Format a group for people: `tp (group 3)`."""
    return f"{mesh_axis} (group {group})" if mesh_axis else f"group {group}"


def blame_text(problem: Mapping[Any, Any], noun: str = "") -> str:
    """Format the ranks of a fault: `blamed: 2`, or `one of: 0,1`; empty if no rank is named."""
    if not (problem["ranks"] and problem["is_fault"]):
        return ""
    named = "one of" if problem["is_one_of_ranks"] else "blamed"
    return f"{named}: {noun}{contracted(problem['ranks'])}"
