"""Shortest cycle of a directed graph through a given node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def shortest_circle(start: Node, following: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the nodes of the shortest cycle through `start`, which comes first; empty if none.

    >>> shortest_circle(0, {0: [1, 2], 1: [2], 2: [0]}.__getitem__)
    [0, 2]
    """
    came_from: dict[Node, Node] = {}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for then in following(at):
            if then == start:
                circle = [at]
                while circle[-1] != start:
                    circle.append(came_from[circle[-1]])
                return circle[::-1]
            if then not in came_from:
                came_from[then] = at
                queue.append(then)
    return []
