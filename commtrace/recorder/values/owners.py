"""Parameters by name, and the groups whose ranks hold replicas of them, or data of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commtrace.recorder.module_place import Place, join
from commtrace.recorder.values.fsdp_classes import fsdp_classes
from commtrace.recorder.wrappers import plain_path
from commtrace.torch_internals.modules import parameters_of


class Owner:
    """Name of a parameter, its module, and the group that holds replicas of it, if known."""

    __slots__ = ("group", "module", "name")

    def __init__(self, name: str, group: str = "") -> None:
        self.name = name
        self.module = name.rpartition(".")[0]
        self.group = group


UNKNOWN_OWNER = Owner("")
"""Owner of a parameter that belongs to no model that was called."""


def unknown_owner(name: str) -> Owner:
    """Return an owner of a parameter that belongs to no called model, under a name of its own."""
    owner = Owner("")
    owner.name = name
    return owner


class Owners:
    """Owners of the parameters of models that were called.

    Args:
        places: returns the places of all modules that were called.
    """

    def __init__(self, places: Callable[[], Iterable[Place]]) -> None:
        self._places = places
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Owner]] = {}

    def of(self, parameter: torch.Tensor) -> Owner | None:
        """Return the owner of a parameter; None if it belongs to no model that was called."""
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            self._learn()
            known = self._known.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def all(self) -> Iterator[tuple[torch.Tensor, Owner]]:
        """Yield all parameters with their owners."""
        self._learn()
        for reference, owner in list(self._known.values()):
            parameter = reference()
            if parameter is not None:
                yield parameter, owner

    def of_optimizer(self, optimizer: Any) -> Iterator[tuple[torch.Tensor, Owner]]:
        """Yield the parameters of an optimizer with their owners, named by number if unknown."""
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                yield parameter, self.of(parameter) or unknown_owner(f"group{number}.{place}")

    def _learn(self) -> None:
        for place in self._places():
            root = place.module() if place.root is place else None
            if root is None:
                continue
            replicas = replicas_of(root)
            for name, each in parameters_of(root):
                owner = Owner(join(place.plain, plain_path(root, name)), replicas)
                self._known[id(each)] = weakref.ref(each), owner


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
