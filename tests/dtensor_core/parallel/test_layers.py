"""Styles that shard parameters: their shards, outputs, and every collective they issue."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from dtensor_core import DTensor, Replicate, Shard
from dtensor_core.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from dtensor_core.testing import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.small_models import RMSNormPython

RANKS = 4
GATHER, SCATTER = {"all_gather_into_tensor": 1}, {"reduce_scatter_tensor": 1}
REDUCE = {"all_reduce": 1}


def parallelized(module, style):
    torch.manual_seed(0)
    return parallelize_module(deepcopy(module), kept_mesh((RANKS,)), style)


def linear() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(16, 16)


def embedding() -> nn.Embedding:
    torch.manual_seed(1)
    return nn.Embedding(16, 16)


def layouts(module) -> dict[str, object]:
    return {name: parameter.placements[0] for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(
    ("module", "style", "expected"),
    [
        (linear(), ColwiseParallel(), {"weight": Shard(0), "bias": Shard(0)}),
        (linear(), RowwiseParallel(), {"weight": Shard(1), "bias": Replicate()}),
        (embedding(), ColwiseParallel(), {"weight": Shard(1)}),
        (embedding(), RowwiseParallel(), {"weight": Shard(0)}),
        (nn.LayerNorm(16), SequenceParallel(), {"weight": Replicate(), "bias": Replicate()}),
        (RMSNormPython(16), SequenceParallel(), {"weight": Replicate()}),
        (nn.Linear(16, 16, bias=False), RowwiseParallel(), {"weight": Shard(1)}),
    ],
    ids=lambda value: repr(value).partition("(")[0],
)
def test_parameters_are_sharded_and_keep_their_values(module, style, expected):
    def body():
        sharded = parallelized(module, style)
        for name, parameter in sharded.named_parameters():
            assert isinstance(parameter, nn.Parameter)
            torch.testing.assert_close(parameter.full_tensor(), module.get_parameter(name))
        return layouts(sharded)

    assert run_threads(body, RANKS) == [expected] * RANKS


@on_threads(RANKS)
def test_frozen_parameters_stay_frozen():
    for module, style in (
        (linear(), ColwiseParallel()),
        (linear(), RowwiseParallel()),
        (nn.LayerNorm(16), SequenceParallel()),
    ):
        sharded = parallelized(module.requires_grad_(False), style)
        assert not any(parameter.requires_grad for parameter in sharded.parameters())


FORWARD_BACKWARD = [
    # module, style, input per rank, its gradient, output per rank, forward, backward
    (linear, ColwiseParallel(), (8, 16), (8, 4), {}, REDUCE),
    (linear, ColwiseParallel(input_layouts=Shard(0)), (8, 16), (32, 4), GATHER, SCATTER),
    (linear, ColwiseParallel(output_layouts=Replicate()), (8, 16), (8, 16), GATHER, REDUCE),
    (linear, RowwiseParallel(), (8, 4), (8, 16), REDUCE, {}),
    (linear, RowwiseParallel(output_layouts=Shard(0)), (8, 4), (2, 16), SCATTER, GATHER),
    (linear, RowwiseParallel(input_layouts=Replicate()), (8, 16), (8, 16), REDUCE, GATHER),
]


@pytest.mark.parametrize(
    ("module", "style", "given", "made", "forward", "backward"),
    FORWARD_BACKWARD,
    ids=[f"{row[0].__name__}-{row[1]}" for row in FORWARD_BACKWARD],
)
def test_a_linear_communicates_exactly_this(module, style, given, made, forward, backward):
    def body():
        sharded = parallelized(module(), style)
        value = torch.rand(given, requires_grad=True)
        with Collectives() as issued_forward:
            output = sharded(value)
        with Collectives() as issued_backward:
            output.sum().backward()
        assert not isinstance(output, DTensor)
        assert value.grad.shape == value.shape
        return tuple(output.shape), dict(issued_forward.counts), dict(issued_backward.counts)

    assert run_threads(body, RANKS) == [(made, forward, backward)] * RANKS


@pytest.mark.parametrize(
    ("style", "given", "made", "forward", "backward"),
    [
        (ColwiseParallel(), (4, 2), (4, 2, 4), {}, {}),
        (RowwiseParallel(input_layouts=Replicate()), (4, 2), (4, 2, 16), REDUCE, {}),
        (
            RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            (8,),
            (8, 4),
            SCATTER,
            GATHER,
        ),
    ],
    ids=repr,
)
def test_an_embedding_communicates_exactly_this(style, given, made, forward, backward):
    def body():
        sharded = parallelized(embedding(), style)
        with Collectives() as issued_forward:
            output = sharded(torch.arange(8).reshape(given))
        with Collectives() as issued_backward:
            output.sum().backward()
        return tuple(output.shape), dict(issued_forward.counts), dict(issued_backward.counts)

    assert run_threads(body, RANKS) == [(made, forward, backward)] * RANKS


@pytest.mark.parametrize("output", [Replicate(), Shard(0), Shard(-1)], ids=repr)
@pytest.mark.parametrize("given", [Replicate(), Shard(0), Shard(-1)], ids=repr)
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_values_and_gradients_are_those_of_one_rank_for_any_layouts(style, given, output):
    full = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    reference = linear()
    reference_input = full.clone().requires_grad_()
    (reference(reference_input) ** 2).sum().backward()

    def body():
        sharded = parallelized(
            linear(), style(input_layouts=given, output_layouts=output, use_local_output=False)
        )
        mesh = kept_mesh((RANKS,))
        start = DTensor.from_local(full.clone(), mesh, [Replicate()]).requires_grad_()
        local = start.redistribute(placements=[given]).to_local()
        result = sharded(local)
        assert result.placements == (Shard(1) if output == Shard(-1) else output,)
        (result**2).sum().backward()
        close = torch.testing.assert_close
        close(result.full_tensor(), reference(full))
        close(start.grad.full_tensor(), reference_input.grad, atol=1e-4, rtol=1e-4)
        close(sharded.weight.grad.full_tensor(), reference.weight.grad, atol=1e-4, rtol=1e-4)
        close(sharded.bias.grad.full_tensor(), reference.bias.grad, atol=1e-4, rtol=1e-4)

    run_threads(body, RANKS)


@on_threads(RANKS)
def test_a_dtensor_input_keeps_its_layout_whatever_input_layouts_are():
    sharded = parallelized(linear(), ColwiseParallel())
    full = torch.ones(8, 16)
    given = DTensor.from_local(full[:2], kept_mesh((RANKS,)), [Shard(0)])
    with Collectives() as issued:
        output = sharded(given)
    assert issued == GATHER
    assert output.shape == (8, 4)


@on_threads(RANKS)
def test_columns_then_rows_take_one_all_reduce_each_way():
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    pair = parallelize_module(
        deepcopy(model), kept_mesh((RANKS,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    value = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Collectives() as forward:
        output = pair(value)
    torch.testing.assert_close(output, model(value))
    with Collectives() as backward:
        output.sum().backward()
    assert forward == REDUCE
    assert backward == REDUCE


@pytest.mark.parametrize("module", [nn.LayerNorm(16), RMSNormPython(16), nn.Dropout(0.0)], ids=repr)
@on_threads(RANKS)
def test_sequence_parallel_works_on_shards_of_the_sequence(module):
    sharded = parallelized(module, SequenceParallel())
    full = torch.rand(2, 8, 16, generator=torch.Generator().manual_seed(0))
    rank = kept_mesh((RANKS,)).get_local_rank()
    mine = full.chunk(RANKS, dim=1)[rank].clone().requires_grad_()
    with Collectives() as issued:
        output = sharded(mine)
    assert issued == {}
    assert output.placements == (Shard(1),)
    torch.testing.assert_close(output.full_tensor(), module(full))
    output.sum().backward()
    assert mine.grad.shape == mine.shape


@on_threads(RANKS)
def test_sequence_parallel_brings_a_dtensor_to_its_sequence_dim():
    mesh = kept_mesh((RANKS,))
    full = torch.rand(8, 4, 16, generator=torch.Generator().manual_seed(0))
    replicated = DTensor.from_local(full, mesh, [Replicate()])
    norm = nn.LayerNorm(16)
    sharded = parallelized(norm, SequenceParallel(sequence_dim=0, use_local_output=True))
    with Collectives() as issued:
        output = sharded(replicated)
    assert issued == {}
    assert not isinstance(output, DTensor)
    torch.testing.assert_close(output, norm(full).chunk(RANKS)[mesh.get_local_rank()])


@on_threads(RANKS)
def test_the_gradient_of_a_replicated_norm_is_summed_over_the_sequence():
    norm = nn.LayerNorm(16)
    full = torch.rand(2, 8, 16, generator=torch.Generator().manual_seed(0))
    norm(full).square().sum().backward()
    sharded = parallelized(nn.LayerNorm(16), SequenceParallel())
    mine = full.chunk(RANKS, dim=1)[kept_mesh((RANKS,)).get_local_rank()]
    sharded(mine).square().sum().backward()
    torch.testing.assert_close(sharded.weight.grad.full_tensor(), norm.weight.grad)


def test_other_modules_are_refused():
    def body(style):
        parallelized(nn.Conv1d(1, 1, 1), style)

    for style in (ColwiseParallel(), RowwiseParallel()):
        with pytest.raises(AssertionError) as failure:
            run_threads(body, RANKS, style)
        error = failure.value.__cause__
        assert isinstance(error, NotImplementedError)
        assert "currently only support nn.Linear and nn.Embedding!" in str(error)


@on_threads(RANKS)
def test_the_error_of_a_call_without_a_tensor_names_the_missing_argument():
    sharded = parallelized(linear(), ColwiseParallel())
    with pytest.raises(ValueError, match="no positional argument; expecting input"):
        sharded(input=torch.ones(1, 16))
    with pytest.raises(ValueError, match="a list; expecting input"):
        parallelized(nn.LayerNorm(16), SequenceParallel())([1])


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (
            ColwiseParallel(),
            "ColwiseParallel(input_layouts=(Replicate(),), output_layouts=(Shard(dim=-1),), "
            "use_local_output=True)",
        ),
        (
            RowwiseParallel(output_layouts=Shard(1)),
            "RowwiseParallel(input_layouts=(Shard(dim=-1),), output_layouts=(Shard(dim=1),), "
            "use_local_output=True)",
        ),
        (SequenceParallel(), "SequenceParallel(sequence_dim=1, use_local_output=False)"),
    ],
    ids=lambda value: "",
)
def test_a_style_has_a_repr(style, text):
    assert repr(style) == text
