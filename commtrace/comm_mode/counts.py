"""Counts by operator, under the names that programs look up.

A functional collective is counted under `torch.ops.c10d_functional`, whatever its variant
(in-place, out); everything else under the operator of `c10d` that was called. Look-ups also accept
`torch.ops._c10d_functional`, and the name that torch's DTensor gives to an all-to-all between two
sharded dimensions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from commtrace.torch_internals.dispatcher import schemas_of
from commtrace.torch_internals.groups import former_functional_ops

_FUNCTIONAL = "_c10d_functional"
_SHARD_TO_SHARD = "_dtensor.shard_dim_alltoall"


@lru_cache(maxsize=256)
def packet_of(native_op: str) -> Any:
    """Return the operator packet under which calls of an operator are counted."""
    namespace, _, name = native_op.partition("::")
    if namespace == _FUNCTIONAL:
        plain = name.removesuffix("_out").rstrip("_")
        if _exists("c10d_functional", plain):
            return getattr(former_functional_ops, plain)
        name = plain if _exists(namespace, plain) else name
    return getattr(getattr(torch.ops, namespace), name)


@lru_cache(maxsize=256)
def overload_of(native_op: str) -> Any:
    """Return the operator overload that was called."""
    namespace, _, name = native_op.partition("::")
    return getattr(getattr(torch.ops, namespace), name).default


def _exists(namespace: str, name: str) -> bool:
    return bool(schemas_of(f"{namespace}::{name}"))


@lru_cache(maxsize=256)
def _counted_as(key: str) -> Any:
    """Return the packet that another packet's name is counted under; None if it is itself."""
    if key == _SHARD_TO_SHARD:
        return packet_of("_c10d_functional::all_to_all_single")
    namespace, _, name = key.partition(".")
    found = packet_of(f"{namespace}::{name}") if namespace == _FUNCTIONAL else None
    return None if str(found) == key else found


class Counts(dict[Any, int]):
    """Number of calls by operator packet, 0 for others.

    Look-ups add no entry.
    """

    def __missing__(self, key: Any) -> int:
        return self.get(key, 0)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the number of calls of an operator, by any of its names."""
        if key in self.keys():
            return super().__getitem__(key)
        other = _counted_as(str(key))
        return super().__getitem__(other) if other in self.keys() else default

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def count(self, key: Any) -> None:
        """Increment the count of a packet."""
        self[key] = super().get(key, 0) + 1
