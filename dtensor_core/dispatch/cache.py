"""The cache of dispatch: decided calls, and what is remembered of operators and kernels.

`CACHE` is all that dispatch remembers between calls, but for the memos of pure functions
(`lru_cache`). Every part is changed in place and never replaced: the modules that a cached call
runs through hold its parts under names of their own, so that a look-up costs no attribute.

The key of a call is a tuple: the operator's id, then for each argument the spec of a DTensor, the
metadata of a plain tensor, the type of a scalar whose value decides nothing, or else the value; see
`dispatcher.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from dtensor_core.dispatch.entry import Entry
from dtensor_core.mesh import on_change
from dtensor_core.spec import TensorMeta

Key = tuple[Any, ...]

MOST_ENTRIES = 65536
"""Bound of each part that has decided calls by their keys."""
MOST_PATTERNS = 4096
"""Bound of the decided calls by their patterns."""
MOST_METADATA = 16384
"""Bound of the remembered metadata."""
MOST_ACCEPTED = 16384
"""Bound of the remembered calls that kernels accept."""
MOST_EMPTY = 4096
"""Bound of the empty tensors."""


class DispatchCache:
    """The memory of dispatch, by part.

    "Layouts" are `forget_layouts`, when the costs or the axes of a mesh have changed; "rule" is
    `forget`, when a user has registered another rule of an operator.

    Attributes:
        entries: The key of a call -> its entry. Cleared for layouts, for a rule the operator's;
            when full, the oldest goes.
        entries_by_value: The key of a call and the values of its deciding numbers, or the key of a
            decomposed call -> its entry. Apart from `entries`, so that a cached call is tested for
            neither. Cleared for layouts, and for a rule as a whole, since a decomposed call depends
            on the rules of several operators; when full, the oldest goes.
        deciding_numbers: The key of a call -> the names of the numbers whose values decide it.
            Cleared as `entries`.
        patterns: The key of a call with letters for sizes -> its entry, and how the specs of its
            results follow (`shape_generic_cache`). Cleared as `entries`.
        pattern_operators: The ids of operators that have had patterns. Never cleared.
        view_operators: The ids of those whose patterns have letters for strides too. Never cleared.
        value_arguments: An operator's id, with the place in a key or the name of an argument that
            is a scalar and counts by type. Never cleared: it follows from the schema.
        known_operators: The ids of operators whose `value_arguments` and `replacements` are
            complete. For a rule, the operator is dropped.
        replacements: The id of an operator -> the function that is called with the DTensors in its
            place: a stand-in, or the decomposition of a composite without a row. For a rule, the
            operator's is dropped.
        stand_ins: The name of an operator -> its stand-in of `special.composites`. Filled when the
            DTensor class is made; never cleared.
        metadata: The metadata of a call's arguments -> those of its results, from the meta kernel
            (`metadata.output_metadata`). Cleared when full.
        accepted_calls: The metadata of calls that their kernels accept (`special.kernel_errors`).
            Cleared when full.
        empty_tensors: A dtype, device and storage offset -> an empty tensor with these
            (`results.from_first`). Cleared when full.
    """

    __slots__ = (
        "accepted_calls",
        "deciding_numbers",
        "empty_tensors",
        "entries",
        "entries_by_value",
        "known_operators",
        "metadata",
        "pattern_operators",
        "patterns",
        "replacements",
        "stand_ins",
        "value_arguments",
        "view_operators",
    )

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.entries_by_value: dict[Key, Entry] = {}
        self.deciding_numbers: dict[Key, tuple[str, ...]] = {}
        self.patterns: dict[Key, tuple[Entry, tuple[Any, ...]]] = {}
        self.pattern_operators: set[int] = set()
        self.view_operators: set[int] = set()
        self.value_arguments: set[tuple[int, int | str]] = set()
        self.known_operators: set[int] = set()
        self.replacements: dict[int, Callable[..., Any]] = {}
        self.stand_ins: dict[str, Callable[..., Any]] = {}
        self.metadata: dict[Hashable, tuple[TensorMeta, ...]] = {}
        self.accepted_calls: set[Hashable] = set()
        self.empty_tensors: dict[tuple[torch.dtype, torch.device, int], torch.Tensor] = {}

    def forget_layouts(self) -> None:
        """Drop every decided call, since the costs or the axes of a mesh have changed."""
        self.entries.clear()
        self.entries_by_value.clear()
        self.deciding_numbers.clear()
        self.patterns.clear()

    def forget(self, op: Any) -> None:
        """Drop the decided calls of an operator, whose rule has changed."""
        op_id = id(op)
        for part in (self.entries, self.deciding_numbers, self.patterns):
            for key in [key for key in part if key[0] == op_id]:
                del part[key]
        self.known_operators.discard(op_id)
        self.replacements.pop(op_id, None)
        self.entries_by_value.clear()


CACHE = DispatchCache()
on_change(CACHE.forget_layouts)
