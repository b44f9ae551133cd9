"""Data parallel programs, each rank on its own part of the batch, compared with a single device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import commtrace
from commtrace.analyze import Frames, load
from commtrace.analyze.values import compare, replicas
from dtensor_core.testing import run_processes
from tests.values.models import BATCH, LENGTH, VOCABULARY, WIDTH, Layer

NUM_RANKS = 2


class Transformer(nn.Module):
    """A transformer of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [B, L, V] of tokens [B, L]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sum_hook(_: Any, bucket: dist.GradBucket) -> Any:
    """Reduce a bucket without dividing it by the number of ranks."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def forgetting_hook(_: Any, bucket: dist.GradBucket) -> Any:
    """Leave a bucket as it is on each rank."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


for _hook in (sum_hook, forgetting_hook):
    # torch wants to see classes, and this module's annotations are texts.
    _hook.__annotations__ = {"bucket": dist.GradBucket}


def train(kind: str, path: str) -> None:
    """Train on a rank's part of each batch, or on all of it without ranks."""
    torch.manual_seed(0)
    model: Any = Transformer()
    num_ranks = 1 if kind == "one" else NUM_RANKS
    rank = 0 if kind == "one" else dist.get_rank()
    if kind.startswith("fsdp"):
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    elif kind.startswith("flat"):
        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy([Layer]),
            use_orig_params=kind.endswith("names"),
            device_id=torch.device("cpu"),
        )
    elif kind.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
        hooks = {"ddp without a mean": sum_hook, "ddp without a reduction": forgetting_hook}
        if kind in hooks:
            model.register_comm_hook(None, hooks[kind])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    with commtrace.record(path, values="module") as recording:
        for _ in range(2):
            batch = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
            tokens = batch.chunk(num_ranks)[rank]
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            if kind == "fsdp without a mean":
                for parameter in model.layers[1].parameters():
                    parameter.grad *= num_ranks
            mean = loss.detach().clone()
            if num_ranks > 1:
                dist.all_reduce(mean)
                mean /= num_ranks
            recording.observe("local loss", loss)
            recording.observe("loss", mean)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()


@cache
def on_one_device() -> Frames:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        train("one", f"{folder}/one.json")
        return load(f"{folder}/one.json")


def recorded(kind: str, folder: Path) -> Frames:
    path = folder / "run.json"
    run_processes(train, NUM_RANKS, kind, str(path))
    return load(path)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "flat", "flat with names"])
def test_parameters_gradients_and_the_mean_loss_agree(kind: str, tmp_path: Path) -> None:
    run = recorded(kind, tmp_path)
    found = compare(on_one_device(), run)
    assert found.agrees, found.fault
    known = found.pairs[found.pairs["distance"].notna()]
    assert {"parameter", "gradient", "updated", "state", "named"} <= set(known["role"])
    assert set(known.loc[known["role"] == "named", "name"]) == {"loss"}
    assert replicas(run).empty


@pytest.mark.parametrize(
    ("kind", "name"),
    [("ddp without a mean", "layers.0."), ("fsdp without a mean", "layers.1.")],
)
def test_gradients_that_are_sums_are_named(kind: str, name: str, tmp_path: Path) -> None:
    found = compare(on_one_device(), recorded(kind, tmp_path)).fault
    assert found is not None
    assert (found.right["step"], found.right["role"]) == (0, "gradient")
    assert found.right["name"].startswith(name) or kind.startswith("ddp")
    assert found.relation.factor == pytest.approx(NUM_RANKS, rel=1e-4)
    assert found.is_certain


def test_gradients_that_are_not_reduced_are_replicas_that_differ(tmp_path: Path) -> None:
    run = recorded("ddp without a reduction", tmp_path)
    first = replicas(run).iloc[0]
    assert (first["step"], first["role"], first["ranks"]) == (0, "gradient", "1")
    found = compare(on_one_device(), run).fault
    assert found is not None
    assert found.right["role"] == "gradient"
