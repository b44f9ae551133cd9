"""Parameters by name, and the groups whose ranks hold replicas of them, or data of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commtrace.recorder.values.fsdp_classes import fsdp_classes


class Owner:
    """Name of a parameter, its module, and the group that holds replicas of it, if known."""

    __slots__ = ("group", "module", "name")

    def __init__(self, name: str, group: str = "") -> None:
        self.name = name
        self.module = name.rpartition(".")[0]
        self.group = group


UNKNOWN_OWNER = Owner("")
"""Owner of a parameter of no model that was called."""


def replicas_of(root: nn.Module) -> str:
    """Return the group that holds replicas of a model's parameters; empty if unknown."""
    if not isinstance(root, DistributedDataParallel):
        return ""
    return _group_text("replicas", dist.get_process_group_ranks(root.process_group))


def data_group(root: nn.Module | None) -> str:
    """Return the group whose ranks compute on data of their own with a model; empty if unknown."""
    if isinstance(root, DistributedDataParallel):
        return _group_text("data", dist.get_process_group_ranks(root.process_group))
    if isinstance(root, fsdp_classes("FSDPModule", "FullyShardedDataParallel")):
        return _group_text("data", range(dist.get_world_size()))
    return ""


def _group_text(name: str, ranks: Sequence[int]) -> str:
    return f"{name}={len(ranks)}:{','.join(map(str, ranks))}"
