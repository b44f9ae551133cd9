"""Sketches of tensors: linear, exact, and different for tensors that differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from commtrace.recorder.events.observed_value import NUM_FACTS
from commtrace.recorder.values import sketches
from commtrace.recorder.values.layouts import indices
from commtrace.recorder.values.sketches import Weights, facts_of, random_vectors
from commtrace.schema import NUM_SKETCHES
from dtensor_core import Partial, Replicate, Shard
from dtensor_core.placement import Placement, strided_shard

_LINEAR = NUM_SKETCHES + 1
NORM, LARGEST, NAN, INF = range(_LINEAR, NUM_FACTS)


def facts(tensor: torch.Tensor) -> torch.Tensor:
    return facts_of(tensor, Weights(tensor.shape, [slice(None)] * tensor.dim()))


def parts(
    tensor: torch.Tensor, placements: Sequence[Placement], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Return the facts of each different part of a tensor."""
    found = []
    for coordinate in itertools.product(*map(range, sizes)):
        if any(p.is_replicate() and place for p, place in zip(placements, coordinate, strict=True)):
            continue
        index = indices(placements, tensor.shape, sizes, coordinate)
        part = tensor
        for dim, own in enumerate(index):
            if isinstance(own, torch.Tensor):
                part = part.index_select(dim, own)
        found.append(facts_of(part, Weights(tensor.shape, index)))
    return found


LAYOUTS = [
    ([Shard(0)], [2]),
    ([Shard(1)], [3]),
    ([Shard(0)], [8]),
    ([Shard(0), Shard(0)], [2, 3]),
    ([Shard(2), Shard(0)], [2, 2]),
    ([strided_shard(0, 2), Shard(0)], [2, 2]),
    ([strided_shard(1, 3)], [2]),
    ([Replicate(), Shard(1)], [2, 4]),
]


@pytest.mark.parametrize("shape", [(5, 7, 3), (8, 6, 4), (1, 1, 1), (0, 3, 2), (70, 3, 80)])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_facts_of_parts_add_up_to_those_of_the_tensor(
    shape: tuple[int, ...], layout: tuple[list[Placement], list[int]]
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    own = torch.stack(parts(tensor, *layout))
    expected = facts(tensor)
    sums = own[:, :_LINEAR].sum(0)
    torch.testing.assert_close(sums, expected[:_LINEAR], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own[:, NORM].square().sum().sqrt(), expected[NORM])
    assert own[:, LARGEST].max() == expected[LARGEST]


def test_facts_of_contributions_add_up_to_those_of_the_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    contributions = [torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(4)]
    sums = torch.stack([facts(each) for each in contributions]).sum(0)
    expected = facts(torch.stack(contributions).sum(0))
    torch.testing.assert_close(sums[:_LINEAR], expected[:_LINEAR])


def test_a_layout_of_partial_sums_has_the_index_of_the_whole() -> None:
    assert indices([Partial(), Replicate()], (3, 4), (2, 2), (1, 1)) == [slice(None)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_changed_bit_changes_the_sketches(dtype: torch.dtype) -> None:
    tensor = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    changed = tensor.clone()
    kind = torch.int32 if dtype is torch.float32 else torch.int16
    changed.view(kind)[17, 63] ^= 1
    assert not torch.equal(facts(tensor)[:NUM_SKETCHES], facts(changed)[:NUM_SKETCHES])


def test_equal_tensors_have_equal_facts_whatever_their_strides() -> None:
    tensor = torch.randn(33, 65)
    assert torch.equal(facts(tensor), facts(tensor.t().contiguous().t()))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (4, 4, 4), (2, 2, 2, 2, 2, 2)])
def test_a_difference_in_one_element_changes_each_sketch_by_at_least_the_bound(
    shape: tuple[int, ...],
) -> None:
    bound = 3.0 ** -len(shape)
    for place in range(math.prod(shape)):
        tensor = torch.zeros(shape)
        tensor.view(-1)[place] = 1.0
        assert facts(tensor)[:NUM_SKETCHES].abs().min() >= bound * (1 - 1e-12)


def test_a_permutation_changes_the_sketches_and_nothing_else() -> None:
    tensor = torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rolled = tensor.roll(1, 0)
    before, after = facts(tensor), facts(rolled)
    assert (before[:NUM_SKETCHES] - after[:NUM_SKETCHES]).abs().min() > 0.01
    torch.testing.assert_close(before[NUM_SKETCHES:], after[NUM_SKETCHES:])


def test_sketches_estimate_the_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(200):
        tensor = torch.randn(10, 10, generator=generator)
        own = facts(tensor)
        ratios.append((own[:NUM_SKETCHES].square().mean() / own[NORM].square()).item())
    assert 0.9 < sum(ratios) / len(ratios) < 1.1


def test_elements_that_are_not_finite_are_counted_and_count_as_zero() -> None:
    tensor = torch.randn(6, 7)
    finite = tensor.clone()
    for place, value in (((0, 1), math.nan), ((2, 3), math.inf), ((4, 5), -math.inf)):
        tensor[place] = value
        finite[place] = 0.0
    own, expected = facts(tensor), facts(finite)
    torch.testing.assert_close(own[: LARGEST + 1], expected[: LARGEST + 1])
    assert own[NAN] == 1
    assert own[INF] == 2


def test_numbers_whose_squares_overflow_have_a_norm() -> None:
    own = facts(torch.tensor([3e200, 4e200], dtype=torch.float64))
    assert own[NORM].item() == pytest.approx(5e200)
    assert own[INF] == 0


def test_a_scalar_has_its_value_as_every_fact() -> None:
    own = facts(torch.tensor(2.5))
    assert own[: LARGEST + 1].abs().eq(2.5).all()


def test_dimensions_of_length_one_have_no_influence() -> None:
    tensor = torch.randn(3, 4)
    assert torch.equal(facts(tensor), facts(tensor[None]))


def test_vectors_depend_on_length_and_place_alone() -> None:
    assert torch.equal(random_vectors(10, 1), random_vectors(10, 1))
    assert not torch.equal(random_vectors(10, 1), random_vectors(10, 2))
    columns = random_vectors(1000, 0)[:, :NUM_SKETCHES]
    assert (columns.T @ columns / 1000 - torch.eye(NUM_SKETCHES)).abs().max() < 0.15


@pytest.mark.parametrize("shape", [(256,), (16, 16), (8, 8, 8)])
def test_differences_are_rarely_underestimated(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    num, few = 3000, 0
    for _ in range(num):
        own = facts(torch.randn(shape, generator=generator))
        few += (own[:NUM_SKETCHES].square().mean().sqrt() < 0.1 * own[NORM]).item()
    # With a probability of about e ** 4 for e = 0.1, times powers of its logarithm.
    assert few / num < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(200_000,), (3, 70_000), (15, 5_000), (20, 9_000), (700, 130)])
def test_a_tensor_of_several_tiles_has_the_numbers_of_its_definition(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    part = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    part[(-1,) * len(shape)] = -9.0
    last = len(shape) - 1
    exact = part.double()[..., None]
    for dim, length in enumerate(shape):
        vectors = random_vectors(length, last - dim)
        exact = exact * vectors.view(*(length if d == dim else 1 for d in range(last + 1)), -1)
    found = facts(part)
    sums = exact.flatten(0, -2).sum(0)
    scale = exact.flatten(0, -2).abs().sum(0)
    assert ((found[: len(sums)] - sums).abs() <= 1e-14 * scale).all()
    assert found[NORM].item() == pytest.approx(part.double().norm().item(), rel=1e-13)
    assert found[LARGEST].item() == 9.0
    part[(-1,) * len(shape)] = float("nan")
    assert facts(part)[NAN].item() == 1


def test_a_view_with_its_sign_bit_set_has_the_numbers_of_its_values() -> None:
    for size in (7, 70_000):
        numbers = torch.randn(size, generator=torch.Generator().manual_seed(0))
        negative = torch.complex(torch.zeros(size), -numbers).conj().imag
        assert negative.is_neg()
        assert torch.equal(facts(negative), facts(numbers))


def test_sequences_of_many_lengths_keep_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = sketches._KeptVectors()
    monkeypatch.setattr(sketches, "kept_vectors", kept)
    monkeypatch.setattr(sketches, "MAX_VECTOR_BYTES", 100_000)
    expected = facts(torch.ones(3, 17))
    most = 0
    for length in range(1, 500):
        facts(torch.ones(3, length))
        most = max(most, kept.num_bytes)
    assert 50_000 < most <= 100_000
    assert kept.num_bytes == sum(each.nbytes for each in kept._known.values())
    assert torch.equal(facts(torch.ones(3, 17)), expected)
    facts(torch.ones(1, 100_000))
    assert (100_000, 0) not in kept._known
