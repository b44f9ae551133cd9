"""Shape-generic cache: reuse of entries for calls that differ from earlier calls only in sizes.

A pattern is the key of a call with letters for sizes; it records which of them are equal, and which
are 0 or 1. A `sizeless` entry holds for every call of its pattern, except for the metadata of its
results, whose sizes are found by their letters. Invariant: `entry_of` returns the result of
`make_entry`, or None. Used by `dispatch`, for a call not seen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.dispatch.cache import CACHE, MOST_PATTERNS, Key
from dtensor_core.dispatch.entry import Entry, PlainCall, ViewCall
from dtensor_core.layout import contiguous_stride
from dtensor_core.mesh import Identity
from dtensor_core.placement import Placement
from dtensor_core.spec import Spec, TensorMeta


@dataclass(frozen=True, slots=True)
class Result:
    """Derivation of a result's spec from a call's key.

    Attributes:
        place: The position in the key of a tensor with the same spec, or None.
        letters: The letters of its sizes, otherwise.
        steps: The letters of its strides; None if it is contiguous.
        whose: The identity of its mesh.
        placements: Its placements.
        dtype: Its dtype.
        shards: Its sharded dimensions, and the number of shards of each.
    """

    place: int | None
    letters: tuple[int, ...]
    steps: tuple[int, ...] | None
    whose: Identity
    placements: tuple[Placement, ...]
    dtype: torch.dtype
    shards: tuple[tuple[int, int], ...]


def entry_of(key: Key) -> Entry | None:
    """Return the entry of a call with this key, or None if no entry of its pattern is cached."""
    # Operators without cached entries need no pattern.
    if key[0] not in CACHE.pattern_operators:
        return None
    # 0 and 1 have fixed letters: empty and broadcast dimensions follow rules of their own, so such
    # a size never matches another one.
    letters: dict[int, int] = {0: 0, 1: 1}
    found = CACHE.patterns.get(_pattern(key, letters))
    if found is None:
        return None
    entry, results = found
    sizes = list(letters)
    specs: list[Spec] = []
    for result in results:
        if result.place is not None:
            spec = key[result.place]
        else:
            shape = torch.Size([sizes[letter] for letter in result.letters])
            if result.steps is None:
                stride = contiguous_stride(shape)
            else:
                stride = tuple([sizes[letter] for letter in result.steps])
            meta = TensorMeta(shape, stride, result.dtype)
            spec = Spec.on(result.whose, result.placements, meta)
        for dim, count in result.shards:
            if spec.shape[dim] % count and 0 in spec.local_shape:
                return None  # an empty rank runs another local operator
        specs.append(spec)
    single = None if entry.single is None else specs[0]
    assert isinstance(entry.kind, (PlainCall, ViewCall))
    kind = entry.kind.at(tuple(specs))
    return Entry(entry.run, kind, single=single, read=entry.read, alias=kind.alias)


def keep(key: Key, entry: Entry) -> None:
    """Keep a sizeless entry for all calls of the pattern of this key."""
    letters: dict[int, int] = {0: 0, 1: 1}
    assert isinstance(entry.kind, (PlainCall, ViewCall))
    outputs = entry.kind.outputs
    if isinstance(entry.kind, ViewCall):
        # Before `_pattern`, which reads this.
        CACHE.view_operators.add(key[0])
    pattern = _pattern(key, letters)
    results = tuple([_result(spec, key, letters) for spec in outputs or () if spec])
    patterns = CACHE.patterns
    if len(patterns) >= MOST_PATTERNS:
        patterns.pop(next(iter(patterns)), None)
    patterns[pattern] = entry, results
    CACHE.pattern_operators.add(key[0])


def _pattern(key: Key, letters: dict[int, int]) -> Key:
    """Return the key with letters for sizes, adding new letters to `letters`.

    The pattern of a view has letters for strides too; others record whether a tensor is contiguous
    or a single expanded value.
    """
    letter = letters.setdefault
    is_view = key[0] in CACHE.view_operators
    pattern: list[Any] = []
    for each in key:
        if type(each) is Spec:
            shape, stride, dtype = each.tensor_meta
            named = tuple([letter(size, len(letters)) for size in shape])
            if is_view:
                strides = tuple([letter(step, len(letters)) for step in stride])
            else:
                strides = stride == contiguous_stride(shape) or (None if any(stride) else False)
            pattern.append((named, strides, dtype, each.placements, each._whose))
        else:
            pattern.append(each)
    return tuple(pattern)


def _result(spec: Spec, key: Key, letters: dict[int, int]) -> Result:
    place = next((place for place, each in enumerate(key) if each is spec), None)
    counts = [1] * spec.ndim
    for placement, ranks in zip(spec.placements, spec.mesh_shape, strict=True):
        if (dim := placement.sharded_dim) is not None:
            counts[dim] *= ranks
    shards = tuple((dim, count) for dim, count in enumerate(counts) if count > 1)
    named = tuple(letters[size] for size in spec.shape)
    steps = tuple(letters[step] for step in spec.stride) if key[0] in CACHE.view_operators else None
    return Result(place, named, steps, spec._whose, spec.placements, spec.dtype, shards)
