"""One observed tensor, until it is written as a row of table `fingerprints`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from commtrace.event import FingerprintRow
from commtrace.recorder.events.location import Location
from commtrace.schema import NUM_SKETCHES
from commtrace.torch_internals.dispatcher import no_dispatch_modes

NUM_FACTS = NUM_SKETCHES + 5
"""Numbers of a fingerprint: the sketches, total, norm, largest, number of nan, number of inf."""

_UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """An observed tensor.

    Attributes:
        rank: rank of the process.
        role: one of `schema.ROLES`.
        name: name of the parameter, or place among the module's outputs.
        op: the operator of a result, or None.
        at_ns: time on the rank's clock.
        location: phase, module call and line.
        module: path of the module, if it differs from the location's.
        region: the user's region.
        thread: native id of the thread.
        dtype: element type.
        shape: shape of the global tensor.
        mesh: axes and ranks of its mesh; empty if unknown.
        placements: placement on each axis; empty if unknown.
        facts: the numbers of its fingerprint, [NUM_FACTS]; None if its part is unknown.
        inputs: how many tensors ago the tensors that it was computed from were observed.
    """

    rank: int
    role: str
    name: str
    op: Any
    at_ns: int
    location: Location
    module: str | None
    region: str
    thread: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    mesh: str
    placements: str
    facts: torch.Tensor | None
    inputs: tuple[int, ...] = ()

    def row(self, number: int, epoch: int, step: int, facts: Sequence[float]) -> Any:
        """Return the row of table `fingerprints`, with its numbers as read from their device."""
        location, place = self.location, self.location.place
        *sketches, total, norm, largest, num_nan, num_inf = facts
        return FingerprintRow(
            self.rank, number, self.role, self.name, str(self.op or ""), self.at_ns + epoch, step,
            location.phase, self.region,
            self.module if self.module is not None else place.plain if place else "",
            place.class_name if place else "",
            location.module_call[1] if location.module_call else -1,
            self.thread, location.file, location.line, location.function,
            str(self.dtype).removeprefix("torch."), _text_of(self.shape), self.mesh,
            self.placements, *sketches, total, norm, largest,
            -1 if num_nan != num_nan else int(num_nan), -1 if num_inf != num_inf else int(num_inf),
            ",".join(map(str, self.inputs)),
        )  # fmt: skip


def rows_of_values(
    entries: Sequence[tuple[ObservedValue, int]], first: int, epoch: int
) -> list[Any]:
    """Return the rows of entries with their steps, numbered from `first`."""
    facts = _facts_of([entry for entry, _ in entries])
    return [
        entry.row(first + place, epoch, step, facts[place])
        for place, (entry, step) in enumerate(entries)
    ]


def _facts_of(entries: Sequence[ObservedValue]) -> list[list[float]]:
    """Return the numbers of several entries, with a single transfer from each device."""
    found = [[_UNKNOWN] * NUM_FACTS for _ in entries]
    by_device: dict[torch.device, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.facts is not None:
            by_device.setdefault(entry.facts.device, []).append(place)
    for places in by_device.values():
        facts: Any = [entries[place].facts for place in places]
        with no_dispatch_modes():  # these are no operators of the program
            numbers = torch.stack(facts).tolist()
        for place, own in zip(places, numbers, strict=True):
            found[place] = own
    return found


def _text_of(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
