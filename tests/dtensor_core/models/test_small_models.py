"""The Transformer, parallel over four ranks, equals the Transformer on a single rank.

The counts are derived, not observed. A column-wise and row-wise pair of matrices (attention;
feed-forward) makes partial sums at its end and, in backward, at its beginning. With tensor
parallelism each is an all-reduce; with sequence parallelism forward and backward each take one
all-gather and one reduce-scatter. Both embeddings are row-wise: their output is a partial sum,
their input has no gradient. The logits are column-wise and gathered; their backward shards a
replicated gradient, which is local, and ends, as every column-wise matrix, in partial sums.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Shard
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.small_models import (
    MLPModule,
    MLPStacked,
    ModelArgs,
    RMSNormPython,
    Transformer,
)

RANKS, LAYERS, STEPS = 4, 2, 20
BATCH, LENGTH, VOCABULARY = 4, 16, 8
SEQUENCE_PARALLEL = [False, True]


def model(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelArgs(n_layers=LAYERS, dropout_p=0.0, **changes))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=dice)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(transformer, step: int = 0) -> torch.Tensor:
    tokens, targets = batch(step)
    return F.cross_entropy(transformer(tokens).flatten(0, 1), targets.flatten())


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor; without sequence parallelism, norms are plain."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(transformer) -> list[float]:
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(transformer, step % 4)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def losses_on_one_rank():
    losses = train(model())
    assert losses[-1] < losses[0] / 2
    return losses


@pytest.mark.parametrize("sequence_parallel", SEQUENCE_PARALLEL)
def test_every_step_of_training_has_the_loss_of_one_rank(sequence_parallel, losses_on_one_rank):
    def body():
        parallel = Transformer.parallelize(model(), kept_mesh((RANKS,)), sequence_parallel)
        return train(parallel)

    for losses in run_threads(body, RANKS, timeout_s=120):
        torch.testing.assert_close(losses, losses_on_one_rank, atol=1e-4, rtol=0)


@pytest.mark.parametrize("local_output_for_attn", [False, True])
@pytest.mark.parametrize("weight_tying", [False, True])
@pytest.mark.parametrize("sequence_parallel", SEQUENCE_PARALLEL)
def test_every_gradient_is_that_of_one_rank(sequence_parallel, weight_tying, local_output_for_attn):
    reference = model(weight_tying=weight_tying)
    loss_of(reference).backward()
    expected = {name: p.grad for name, p in reference.named_parameters()}

    def body():
        parallel = Transformer.parallelize(
            model(weight_tying=weight_tying),
            kept_mesh((RANKS,)),
            sequence_parallel,
            local_output_for_attn,
        )
        loss_of(parallel).backward()
        return {name: full(p.grad) for name, p in parallel.named_parameters()}

    for gradients in run_threads(body, RANKS):
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=name)


FORWARD = {
    False: {"all_reduce": 2 + 2 * LAYERS, "all_gather_into_tensor": 1},
    True: {"reduce_scatter_tensor": 2 + 2 * LAYERS, "all_gather_into_tensor": 2 * LAYERS + 1 + 1},
}
BACKWARD = {
    False: {"all_reduce": 2 * LAYERS + 1},
    True: {"reduce_scatter_tensor": 2 * LAYERS + 1, "all_gather_into_tensor": 2 * LAYERS + 2},
}


@pytest.mark.parametrize("sequence_parallel", SEQUENCE_PARALLEL)
def test_a_step_communicates_what_theory_predicts(sequence_parallel):
    def body():
        parallel = Transformer.parallelize(model(), kept_mesh((RANKS,)), sequence_parallel)
        with Collectives() as forward:
            loss = loss_of(parallel)
        with Collectives() as backward:
            loss.backward()
        return dict(forward.counts), dict(backward.counts)

    expected = FORWARD[sequence_parallel], BACKWARD[sequence_parallel]
    assert run_threads(body, RANKS) == [expected] * RANKS


def test_activation_checkpointing_changes_no_gradient():
    def body(checkpoint_activations):
        parallel = Transformer.parallelize(
            model(checkpoint_activations=checkpoint_activations), kept_mesh((RANKS,)), True
        )
        loss_of(parallel).backward()
        return [p.grad.to_local() for p in parallel.parameters()]

    for plain, checkpointed in zip(
        run_threads(body, RANKS, False), run_threads(body, RANKS, True), strict=True
    ):
        torch.testing.assert_close(plain, checkpointed, atol=0, rtol=0)


def test_tied_weights_stay_tied():
    def body():
        parallel = Transformer.parallelize(model(), kept_mesh((RANKS,)), False)
        assert parallel.output.weight is parallel.tok_embeddings.weight
        assert isinstance(parallel.output.weight.data, DTensor)
        return parallel.output.weight.placements

    assert run_threads(body, RANKS) == [(Shard(0),)] * RANKS


def test_a_model_copied_is_the_same_model():
    original = model()
    assert torch.equal(loss_of(original), loss_of(copy.deepcopy(original)))


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="17 tokens; the model takes 16"):
        model()(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="dim 16 can't be divided among 3 heads"):
        model(n_heads=3)


def test_mlps_are_the_same_at_every_construction():
    x = torch.randn(3, 10)
    assert torch.equal(MLPModule("cpu")(x), MLPModule("cpu")(x))
    assert MLPModule("cpu", bias=False).net1.bias is None
    stacked = MLPStacked("cpu", n_layers=3)
    assert len(stacked.layers) == 3
    assert stacked(x).shape == (3, 10)
    stacked.layers[0].reset_parameters()
    assert not torch.equal(stacked.layers[0](x), stacked.layers[1](x))


def test_rms_norm_is_torchs():
    x = torch.randn(4, 6)
    torch.testing.assert_close(RMSNormPython(6)(x), F.rms_norm(x, (6,), eps=1e-6))
