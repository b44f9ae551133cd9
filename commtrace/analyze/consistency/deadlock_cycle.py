"""Shortest cycle of a directed graph through a given node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def shortest_cycle(start: Node, following: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the nodes of the shortest cycle through `start`, which comes first; empty if none.

    >>> shortest_cycle(0, {0: [1, 2], 1: [2], 2: [0]}.__getitem__)
    [0, 2]
    """
    predecessor: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for then in following(at):
            if then == start:
                cycle = [at]
                while cycle[-1] != start:
                    cycle.append(predecessor[cycle[-1]])
                return cycle[::-1]
            if then not in predecessor:
                predecessor[then] = at
                queue.append(then)
    return []
