"""Models that train as they should: no divergence, and no finding of load or lost overlap.

Eleven models of `transformers` train on gloo ranks under DistributedDataParallel and under
`fully_shard`. `tests/training_scripts` asks the same of the recordings of foreign scripts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import load
from dtensor_core.testing import run_processes
from tests.commtrace.analyze.alarms import alarms
from tests.dtensor_core.models.pretrained import MODELS, train

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
