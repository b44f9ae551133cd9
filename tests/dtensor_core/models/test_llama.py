"""A Llama trains on a mesh as on a single device, in every sharding of it.

The model is written for a single device. It is sharded by a plan of styles (tensor and sequence
parallel), or all parameters are DTensors on a mesh of one or two axes and the inputs are DTensors.
Every loss and every gradient of ten steps in double precision is compared.

Counts of collectives are derived. With sequence parallelism, a block gathers its input at the
beginning of attention and of the feed-forward, and reduce-scatters the partial sums at the end of
each; backward mirrors both. The embedding reduce-scatters its partial sums, the last matrix gathers
its input, and without `loss_parallel` its logits are gathered, whose backward is a slice.
`loss_parallel` reduces a maximum and a sum over the classes of each sample, and the loss; its
backward sends nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from dtensor_core import Replicate, Shard
from dtensor_core.parallel import loss_parallel
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.llama import TENSOR_PARALLEL, LlamaArgs, distribute, parallelize
from tests.dtensor_core.models.training import (
    Recipe,
    Step,
    expect_same,
    llama,
    loss_of,
    on_one_device,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore::dtensor_core.MissingRuleWarning")

HALVES = {"complex_rotary": False}
EVEN = LlamaArgs(n_kv_heads=4)
FEW_KV = LlamaArgs(n_kv_heads=2, **HALVES)
TIED = LlamaArgs(tied=True)
# 3 of 6 heads, 33 words and 25 hidden features cannot be halved.
UNEVEN = LlamaArgs(n_heads=6, n_kv_heads=3, hidden_dim=25, vocab_size=33)
ONE_KV_HEAD = LlamaArgs(n_kv_heads=1, **HALVES)

SHORT = Recipe(steps=3)


def expect_trains_as_on_one_device(
    args: LlamaArgs, ranks: int, recipe: Recipe = SHORT, **options: bool
) -> None:
    """Train with styles on a mesh of a single axis and compare with a single device."""
    recipe = replace(recipe, loss_parallel=options.get("loss_parallel", False))

    def body() -> list[Step]:
        return train(parallelize(llama(args), kept_mesh((ranks,)), **options), recipe)

    for taken in run_threads(body, ranks):
        expect_same(taken, on_one_device(args, replace(recipe, loss_parallel=False)))


@pytest.mark.parametrize("with_loss_parallel", [False, True])
@pytest.mark.parametrize(
    ("args", "ranks"), [(EVEN, 4), (FEW_KV, 2), (TIED, 2)], ids=["even", "few kv heads", "tied"]
)
def test_tensor_and_sequence_parallel_trains_as_on_one_device(args, ranks, with_loss_parallel):
    expect_trains_as_on_one_device(args, ranks, Recipe(), loss_parallel=with_loss_parallel)


@pytest.mark.parametrize("with_loss_parallel", [False, True])
@pytest.mark.parametrize(
    ("args", "ranks"), [(UNEVEN, 2), (replace(UNEVEN, **HALVES), 3)], ids=["pairs", "halves"]
)
def test_uneven_heads_vocabulary_and_sequence_train_as_on_one_device(
    args, ranks, with_loss_parallel
):
    recipe = Recipe(length=7)
    expect_trains_as_on_one_device(
        args, ranks, recipe, loss_parallel=with_loss_parallel, use_local_output=False
    )


def test_fewer_kv_heads_than_ranks_train_as_on_one_device():
    expect_trains_as_on_one_device(ONE_KV_HEAD, 2, use_local_output=False)


@pytest.mark.parametrize("args", [UNEVEN, ONE_KV_HEAD], ids=["uneven heads", "one kv head"])
def test_half_a_head_as_a_local_tensor_is_refused_on_every_rank(args):
    def body() -> bool:
        model = parallelize(llama(args), kept_mesh((2,)))
        tokens, targets = SHORT.data(0, args.vocab_size, None)
        with pytest.raises(RuntimeError, match="is invalid for input of size"):
            loss_of(model, tokens, targets)
        return True

    assert run_threads(body, 2) == [True, True]


def test_activation_checkpointing_trains_as_on_one_device():
    expect_trains_as_on_one_device(replace(EVEN, checkpoint_activations=True), 2)


@pytest.mark.parametrize("recipe", [replace(SHORT, clip=0.5), replace(SHORT, accumulated=3)])
def test_clipped_and_accumulated_gradients_are_those_of_one_device(recipe):
    expect_trains_as_on_one_device(FEW_KV, 2, recipe)


# Meshes, shardings by axis, and the layout of tokens and targets.
ROWS = {"rotary": Replicate(), "*": Shard(0)}
REPLICATED = {"*": Replicate()}
LAYOUTS = {
    "tensor": ((2,), [TENSOR_PARALLEL], (Replicate(),)),
    "data": ((2,), [REPLICATED], (Shard(0),)),
    "data, rows of weights sharded": ((3,), [ROWS], (Shard(0),)),
    "data × tensor": ((2, 2), [REPLICATED, TENSOR_PARALLEL], (Shard(0), Replicate())),
    "data × tensor, weights sharded on both": (
        (2, 2),
        [ROWS, TENSOR_PARALLEL],
        (Shard(0), Replicate()),
    ),
    "sequence × tensor": ((2, 2), [REPLICATED, TENSOR_PARALLEL], (Shard(1), Replicate())),
}


TEN_STEPS = ("data × tensor, weights sharded on both", "tensor")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("args", [FEW_KV, UNEVEN], ids=["even", "uneven"])
def test_every_parameter_a_dtensor_trains_as_on_one_device(args, layout):
    shape, axes, data = LAYOUTS[layout]
    recipe = Recipe(
        steps=10 if layout in TEN_STEPS else 2, batch=3 if args is UNEVEN else 4, length=7
    )

    def body() -> list[Step]:
        mesh = kept_mesh(shape)
        return train(distribute(llama(args), mesh, axes), replace(recipe, layout=data), mesh)

    for taken in run_threads(body, torch.Size(shape).numel(), timeout_s=120):
        expect_same(taken, on_one_device(args, recipe))


LAYERS = EVEN.n_layers
HALF_BLOCKS = 2 * LAYERS
FORWARD = {"all_gather_into_tensor": HALF_BLOCKS + 1, "reduce_scatter_tensor": HALF_BLOCKS + 1}
FORWARD_COUNTS = {
    False: FORWARD | {"all_gather_into_tensor": HALF_BLOCKS + 2},
    True: FORWARD | {"all_reduce": 3},
}
BACKWARD = FORWARD


@pytest.mark.parametrize("use_local_output", [False, True])
@pytest.mark.parametrize("with_loss_parallel", [False, True])
def test_a_step_communicates_what_theory_predicts(with_loss_parallel, use_local_output):
    def body() -> tuple[dict[str, int], dict[str, int]]:
        model = parallelize(
            llama(replace(EVEN, **HALVES)),
            kept_mesh((2,)),
            loss_parallel=with_loss_parallel,
            use_local_output=use_local_output,
        )
        data = SHORT.data(0, EVEN.vocab_size, None)
        with loss_parallel() if with_loss_parallel else nullcontext():
            with Collectives() as forward:
                loss = loss_of(model, *data)
            with Collectives() as backward:
                loss.backward()
        return dict(forward.counts), dict(backward.counts)

    expected = FORWARD_COUNTS[with_loss_parallel], BACKWARD
    assert run_threads(body, 2) == [expected] * 2


def test_in_mixed_precision_losses_are_those_of_one_device():
    def losses(model) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        found = []
        for step in range(5):
            tokens, targets = SHORT.data(step, EVEN.vocab_size, None)
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    def body() -> list[float]:
        return losses(parallelize(llama(EVEN).float(), kept_mesh((2,))))

    expected = losses(llama(EVEN).float())
    for found in run_threads(body, 2):
        assert found == pytest.approx(expected, abs=3e-2)
