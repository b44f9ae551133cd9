"""Models that train as they should: no divergence, and no finding of load or lost overlap.

Eleven models of `transformers` train on gloo ranks under DistributedDataParallel and under
`fully_shard`. `tests/training_scripts` asks the same of the recordings of foreign scripts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import load
from dtensor_core.testing import run_processes
from tests.commtrace.analyze.alarms import alarms
from tests.dtensor_core.models.pretrained import MODELS

pytestmark = pytest.mark.filterwarnings("ignore")


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fully_sharded(model: nn.Module) -> nn.Module:
    """Shard each layer by itself, except where two stacks of layers share an embedding."""
    if not model.config.is_encoder_decoder:
        for layers in [each for each in model.modules() if isinstance(each, nn.ModuleList)]:
            for layer in layers:
                fully_shard(layer)
    return fully_shard(model)


def train(model: nn.Module, batch: dict[str, torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    given = {name: value for name, value in batch.items() if name != "targets"}
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(**given).logits
        F.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def record_all(wrap: Any, folder: str) -> None:
    for name, each in MODELS.items():
        model = wrap(each.make())
        with commtrace.record(f"{folder}/{name}.json"):
            train(model, each.batch())


@pytest.mark.parametrize("wrap", [replicated, fully_sharded])
def test_no_alarm_where_models_train_as_they_should(wrap: Any, tmp_path: Path) -> None:
    run_processes(record_all, 2, wrap, str(tmp_path), timeout_s=240)
    for name in MODELS:
        frames = load(tmp_path / f"{name}.json")
        assert len(frames.comm) > 0
        assert alarms(frames) == [], name
