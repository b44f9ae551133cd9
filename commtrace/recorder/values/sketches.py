"""Sketches of a tensor: sums of its elements, each times a random number of its global index.

    sketch(x) = sum over i of r(i) x(i)        r(i, j, k) = r2(i) r1(j) r0(k)

A sketch is linear. Hence the sketches of a sharded tensor's parts add up to the global tensor's
sketch, and sketches of partial sums to the sum's, whatever the layout. `r` is a product of one
random vector per dimension, so a sketch is a matrix product, and each element is read once. The
vectors depend only on the length of the dimension and its place, counted from the last.

Different tensors of the same shape have equal sketches with probability zero, and rarely nearly
equal sketches: the elements of a vector have random signs, magnitudes between 0.5 and 1.5 times a
constant, and a mean square of 1. So a difference in a single element changes a sketch by at least
3 ^ -(number of dimensions) of it. A dimension of length 1 has no influence, and a `LONG` dimension
counts as two.

Elements are converted to float64 first, exactly, so parts that are equal bit for bit have equal
sketches. An element that is not finite counts as 0 and is counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from commtrace.recorder.events.observed_value import NUM_FACTS
from commtrace.schema import NUM_SKETCHES

Index = slice | torch.Tensor
"""Global indices of the local elements along a dimension."""

_WIDTH = NUM_SKETCHES + 1
_CHUNK = 1 << 16
"""Elements that are converted to float64 at once; they stay in a cache of the processor."""
_LEAST_ROWS = 16
LONG, _ROW = 1 << 18, 1 << 10
"""Length of a tensor's only dimension beyond which it is treated as rows of this many elements."""
_SMALL = 1 << 12
"""Elements of a part up to which calls take longer than its numbers; BLAS starts no threads."""
MAX_VECTOR_BYTES = 1 << 26
"""Bound on the random vectors that are kept."""
_GOLDEN = 0x9E3779B97F4A7C15


class _KeptVectors:
    """Random vectors by length and place, up to a number of bytes.

    Attributes:
        num_bytes: memory of the vectors that are kept.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._known: dict[tuple[int, int], torch.Tensor] = {}
        self._lock = threading.Lock()

    def of(self, length: int, place: int) -> torch.Tensor:
        """Return vectors; the oldest beyond the bound are dropped."""
        vectors = self._known.get((length, place))
        if vectors is None:
            vectors = _random_vectors(length, place)
            with self._lock:
                self._keep((length, place), vectors)
        return vectors

    def _keep(self, key: tuple[int, int], vectors: torch.Tensor) -> None:
        if key in self._known or vectors.nbytes > MAX_VECTOR_BYTES:
            return
        self._known[key] = vectors
        self.num_bytes += vectors.nbytes
        while self.num_bytes > MAX_VECTOR_BYTES:
            self.num_bytes -= self._known.pop(next(iter(self._known))).nbytes


kept_vectors = _KeptVectors()


def random_vectors(length: int, place: int) -> torch.Tensor:
    """Return the random vectors of a dimension, and a vector of ones for the total.

    Args:
        length: length of the dimension.
        place: its place, counted from the last.

    Returns:
        float64, [length, NUM_SKETCHES + 1]; the mean square of each column is 1.
    """
    return kept_vectors.of(length, place)


def _random_vectors(length: int, place: int) -> torch.Tensor:
    seeds = np.arange(NUM_SKETCHES, dtype=np.uint64) + np.uint64(place * NUM_SKETCHES + 1)
    index = np.arange(length, dtype=np.uint64)
    with np.errstate(over="ignore"):
        bits = _mixed(index[:, None] * np.uint64(_GOLDEN) + _mixed(seeds)[None, :])
    uniform = (bits >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    sign = 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float64)
    vectors = np.ones((length, _WIDTH))
    if length > 1:
        columns = sign * (0.5 + uniform)
        vectors[:, :NUM_SKETCHES] = columns / np.sqrt((columns**2).mean(axis=0))
    return torch.from_numpy(vectors)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Mix 64-bit integers; the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(_GOLDEN)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class Weights:
    """Random numbers of the elements of a part, as two factors: of its rows and of its columns.

    The last dimensions of the part are the columns of a matrix, the others its rows. For a small
    part, their products are kept, too.

    Args:
        shape: shape of the global tensor.
        index: global indices of the part, for each dimension.
        device: device of the part.
    """

    def __init__(
        self, shape: Sequence[int], index: Sequence[Index], device: torch.device | str = "cpu"
    ) -> None:
        rows, columns = _factors(shape, index)
        self._set(rows, columns, device)

    def _set(
        self, rows: torch.Tensor, columns: torch.Tensor, device: torch.device | str
    ) -> Weights:
        self.rows = rows.t().contiguous().to(device)
        self.columns = columns.t().contiguous().to(device)
        self.of_elements: np.ndarray | None = None
        if 0 < len(rows) * len(columns) <= _SMALL and self.rows.is_cpu:
            elements = self.rows[:, :, None] * self.columns[:, None, :]
            self.of_elements = elements.reshape(_WIDTH, -1).numpy()
        return self

    @classmethod
    def of_range(
        cls, shape: Sequence[int], begin: int, end: int, device: torch.device | str = "cpu"
    ) -> list[tuple[int, Weights]]:
        """Return the random numbers of a range of elements, in row-major order.

        The range has up to three rectangular pieces: the rest of a row, whole rows, and the
        beginning of another row. Each comes with the number of its elements.
        """
        rows, columns = _factors(shape, [slice(None)] * len(shape))
        width = len(columns)
        found = []
        while begin < end:
            row, column = divmod(begin, width)
            num_rows = (end - begin) // width if not column else 0
            own = slice(row, row + max(1, num_rows))
            last = width if num_rows else min(width, column + end - begin)
            weights = cls.__new__(cls)._set(rows[own], columns[column:last], device)
            size = max(1, num_rows) * (last - column)
            found.append((size, weights))
            begin += size
        return found

    @property
    def num_bytes(self) -> int:
        """Memory of the random numbers."""
        of_elements = self.of_elements.nbytes if self.of_elements is not None else 0
        return self.rows.nbytes + self.columns.nbytes + of_elements


def is_long(shape: Sequence[int]) -> bool:
    """Return whether a 1-D tensor is treated as a matrix."""
    return len(shape) == 1 and shape[0] > LONG


def _num_rows(shape: Sequence[int]) -> int:
    return -(-shape[0] // _ROW)


def _factors(shape: Sequence[int], index: Sequence[Index]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the random numbers of rows and of columns, [number, NUM_SKETCHES + 1]."""
    if is_long(shape):
        (own,) = index
        places = torch.arange(shape[0])[own]
        rows, columns = (random_vectors(*each) for each in ((_num_rows(shape), 1), (_ROW, 0)))
        return _product([]), rows[places // _ROW] * columns[places % _ROW]
    last = len(shape) - 1
    vectors = [
        random_vectors(length, last - dim)[own]
        for dim, (length, own) in enumerate(zip(shape, index, strict=True))
    ]
    split = _split([len(each) for each in vectors])
    return _product(vectors[:split]), _product(vectors[split:])


def _split(lengths: Sequence[int]) -> int:
    """Return the dimension from which on dimensions are columns: at least 64, if there are any."""
    num_columns, dim = 1, len(lengths)
    while dim and num_columns < 64:
        dim -= 1
        num_columns *= lengths[dim]
    return dim


def _product(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Merge the vectors of several dimensions into the vectors of a single dimension."""
    if not vectors:
        return torch.ones(1, _WIDTH, dtype=torch.float64)
    product, *others = vectors
    for each in others:
        product = (product[:, None, :] * each[None, :, :]).reshape(-1, _WIDTH)
    return product


class RangeWeights:
    """Random numbers of a range of a tensor's elements, in row-major order.

    A long 1-D tensor is treated as a matrix whose last row may be incomplete. Its random numbers
    take less memory than its elements.

    Args:
        shape: shape of the global tensor.
        begin: first element of the range.
        end: end of the range.
        device: device of the part.
    """

    def __init__(
        self, shape: Sequence[int], begin: int, end: int, device: torch.device | str = "cpu"
    ) -> None:
        matrix = (_num_rows(shape), _ROW) if is_long(shape) else shape
        self.pieces = Weights.of_range(matrix, begin, end, device)

    @property
    def num_bytes(self) -> int:
        """Memory of the random numbers."""
        return sum(weights.num_bytes for _, weights in self.pieces)


def facts_of(part: torch.Tensor, weights: Weights | RangeWeights) -> torch.Tensor:
    """Return the numbers of a part's fingerprint, on its device.

    Args:
        part: the local elements.
        weights: weights of the part; for a range, the part is its elements, [number].

    Returns:
        float64, [NUM_FACTS].
    """
    if not part.numel():
        return torch.zeros(NUM_FACTS, dtype=torch.float64, device=part.device)
    if isinstance(weights, RangeWeights):
        sizes = [size for size, _ in weights.pieces]
        pieces = zip(part.split(sizes), weights.pieces, strict=True)
        return _summed(torch.stack([facts_of(piece, own) for piece, (_, own) in pieces]))
    # Counting what is not finite takes passes of its own; another device is not waited for.
    if part.device.type != "cpu":
        return _facts_of_finite(part, weights)
    if weights.of_elements is not None:
        sketches, square, largest = _of_small(part, weights.of_elements)
    else:
        matrix = part.detach().resolve_neg().reshape(-1, weights.columns.shape[1])
        project = _by_rows if len(matrix) >= _LEAST_ROWS else _by_columns
        sketches, square, largest = project(matrix, weights)
    if not math.isfinite(square):
        return _facts_of_finite(part, weights)
    facts = [*sketches, math.sqrt(square), largest, 0.0, 0.0]
    return torch.tensor(facts, dtype=torch.float64)


def _summed(facts: torch.Tensor) -> torch.Tensor:
    """Combine the numbers of a part's pieces, [number, NUM_FACTS]."""
    found = facts.sum(0)
    found[_WIDTH] = torch.linalg.vector_norm(facts[:, _WIDTH])
    found[_WIDTH + 1] = facts[:, _WIDTH + 1].max()
    return found


_Facts = tuple[list[float], float, float]
"""Sketches, sum of squares and largest magnitude."""


def _of_small(part: torch.Tensor, of_elements: np.ndarray) -> _Facts:
    """Return the numbers of a small part, with few calls."""
    numbers = part.to(torch.float64).reshape(-1).numpy(force=True)
    most, least = np.maximum.reduce(numbers), np.minimum.reduce(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        sketches, square = of_elements.dot(numbers), numbers.dot(numbers)
    return sketches.tolist(), float(square), max(float(most), -float(least))


def _by_rows(matrix: torch.Tensor, weights: Weights) -> _Facts:
    """Return the numbers of a matrix; its rows are summed first.

    That is faster than to sum columns first, if there are enough rows.
    """
    num_columns = matrix.shape[1]
    sums = torch.zeros(_WIDTH, num_columns, dtype=torch.float64)
    sizes = _Sizes()
    width = min(num_columns, _CHUNK // _LEAST_ROWS)
    height = _CHUNK // width
    for own, part in zip(sums.split(width, 1), matrix.split(width, 1), strict=True):
        tiles = sizes.of_tiles(part, height)
        for rows, tile in zip(weights.rows.split(height, 1), tiles, strict=True):
            own.addmm_(rows, tile)
    return (sums * weights.columns).sum(1).tolist(), sizes.square, sizes.largest


def _by_columns(matrix: torch.Tensor, weights: Weights) -> _Facts:
    """Return the numbers of a matrix that has only few rows."""
    height = len(matrix)
    sums = torch.zeros(height, _WIDTH, dtype=torch.float64)
    sizes = _Sizes()
    width = _CHUNK // _LEAST_ROWS
    for columns, part in zip(weights.columns.split(width, 1), matrix.split(width, 1), strict=True):
        for tile in sizes.of_tiles(part, height):
            sums.addmm_(tile, columns.t())
    return (sums.t() * weights.rows).sum(1).tolist(), sizes.square, sizes.largest


class _Scratch(threading.local):
    """Memory of a thread for a tile in float64, which is not allocated for each tensor."""

    def __init__(self) -> None:
        self.elements = torch.empty(_CHUNK, dtype=torch.float64)


_scratch = _Scratch()


class _Sizes:
    """Sum of squares and largest magnitude of tiles, found while a tile is in the cache."""

    def __init__(self) -> None:
        self.square = self.largest = 0.0

    def of_tiles(self, matrix: torch.Tensor, height: int) -> Iterator[torch.Tensor]:
        """Yield the rows of a matrix in float64, `height` at once; a tile lasts until the next."""
        # numpy takes half of torch's time. It reads float32 in place, and the copy finds it cached.
        numbers = matrix.numpy() if matrix.dtype == torch.float32 else None
        exact = flat = _scratch.elements[:0]
        for place, tile in enumerate(matrix.split(height)):
            if len(tile) != len(exact):
                flat = _scratch.elements[: tile.numel()]
                exact = flat.view(tile.shape)
            if numbers is not None:
                self._compare(numbers[place * height : (place + 1) * height])
            exact.copy_(tile)
            if numbers is None:
                self._compare(flat.numpy())
            self.square += torch.dot(flat, flat).item()
            yield exact

    def _compare(self, numbers: np.ndarray) -> None:
        most, least = np.maximum.reduce(numbers, None), np.minimum.reduce(numbers, None)
        self.largest = max(self.largest, float(most), -float(least))


def _facts_of_finite(part: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Return the numbers of a part that has elements that are not finite, or very large."""
    exact = part.to(torch.float64)
    is_nan, is_inf = exact.isnan(), exact.isinf()
    finite = torch.nan_to_num(exact, nan=0.0, posinf=0.0, neginf=0.0)
    # Squares of elements beyond 1e154 overflow, so the norm is taken of scaled elements.
    largest = finite.abs().max()
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    matrix = finite.reshape(-1, weights.columns.shape[1])
    sums = (torch.mm(weights.columns, matrix.t()) * weights.rows).sum(1)
    facts = torch.empty(NUM_FACTS, dtype=torch.float64, device=part.device)
    facts[:_WIDTH] = sums
    facts[_WIDTH] = torch.linalg.vector_norm(finite / scale) * scale
    facts[_WIDTH + 1] = largest
    facts[_WIDTH + 2] = is_nan.sum()
    facts[_WIDTH + 3] = is_inf.sum()
    return facts
