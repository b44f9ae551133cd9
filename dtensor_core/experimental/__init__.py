"""Experimental: local functions, user rules, context parallelism, implicit replication, links."""

from dtensor_core.dispatch.special.contexts import implicit_replication
from dtensor_core.experimental.attention import context_parallel
from dtensor_core.experimental.local_map import local_map
from dtensor_core.experimental.sharding import register_sharding
from dtensor_core.redistribute.cost import Link, link_of, set_link

__all__ = [
    "Link",
    "context_parallel",
    "implicit_replication",
    "link_of",
    "local_map",
    "register_sharding",
    "set_link",
]


def __dir__() -> list[str]:
    return list(__all__)
