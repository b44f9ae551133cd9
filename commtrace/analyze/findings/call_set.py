"""Calls of a finding, by their labels in table `comm`, in little memory.

A finding of a large run can have most of its calls. Where they are dense, they take a bit for each
label between the first and the last of a part; elsewhere, 8 bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

_BITS = 64
"""Number of bits of a label."""


@dataclass(frozen=True, slots=True)
class _CallsOfPart:
    """Calls of a part.

    Attributes:
        first: The first label.
        bits: A bit for each label from there on, if the calls are dense.
        labels: Their labels, otherwise.
    """

    first: int
    bits: np.ndarray | None
    labels: np.ndarray | None

    def sorted_labels(self) -> np.ndarray:
        """Return the labels in ascending order."""
        if self.labels is not None:
            return self.labels
        assert self.bits is not None
        return self.first + np.flatnonzero(np.unpackbits(self.bits))

    def among(self, labels: np.ndarray) -> np.ndarray:
        """Return a mask of the given labels that it has."""
        if self.labels is not None:
            return np.isin(labels, self.labels)
        assert self.bits is not None
        place = labels - self.first
        is_near = (place >= 0) & (place < 8 * len(self.bits))
        found = np.zeros(len(labels), dtype=bool)
        near = place[is_near]
        found[is_near] = (self.bits[near >> 3] >> (7 - (near & 7)).astype("uint8")) & 1 > 0
        return found


@dataclass(frozen=True, slots=True)
class CallSet:
    """Calls by their labels; its length is the number of rows that it was made of."""

    pieces: tuple[_CallsOfPart, ...]
    num_rows: int

    @classmethod
    def of(cls, rows: pd.Index) -> CallSet:
        """Return the calls of some rows of table `comm`."""
        labels = np.unique(rows.to_numpy("int64"))
        if not len(labels):
            return cls((), 0)
        first, span = int(labels[0]), int(labels[-1] - labels[0]) + 1
        if span > _BITS * len(labels):
            return cls((_CallsOfPart(first, None, labels),), len(rows))
        is_in = np.zeros(span, dtype=bool)
        is_in[labels - first] = True
        return cls((_CallsOfPart(first, np.packbits(is_in), None),), len(rows))

    def joined(self, other: CallSet) -> CallSet:
        """Return the calls of both, which have none in common."""
        return CallSet(self.pieces + other.pieces, self.num_rows + other.num_rows)

    def __len__(self) -> int:
        return self.num_rows

    def __contains__(self, label: object) -> bool:
        wanted = np.array([label], dtype="int64")
        return any(bool(piece.among(wanted)[0]) for piece in self.pieces)

    def places_in(self, index: pd.Index) -> np.ndarray:
        """Return the places of its calls in the labels of a table, which may have others."""
        if self.num_rows <= len(index):
            labels = [piece.sorted_labels() for piece in self.pieces]
            places = index.get_indexer(pd.Index(np.concatenate([*labels, np.empty(0, "int64")])))
            return np.unique(places[places >= 0])
        wanted = index.to_numpy("int64")
        masks = [piece.among(wanted) for piece in self.pieces]
        return np.flatnonzero(np.logical_or.reduce(masks))
