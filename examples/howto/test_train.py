"""Bounds on what a step of train.py sends."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from train import network

from dtensor_core.testing import on_threads


@pytest.mark.comms(all_reduce=1, payload="<=460 kB", phase="backward")
@on_threads(2)
def test_a_step_reduces_its_gradients_in_one_bucket() -> None:
    model = DistributedDataParallel(network())
    model(torch.ones(4, 96)).sum().backward()
