"""Cycles of a directed graph: strongly connected components, and a shortest cycle.

networkx does the search. It is imported only when there is a graph, so not for healthy runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import networkx as nx

Node = TypeVar("Node", bound=Hashable)


def graph_of(edges: Iterable[tuple[Node, Node]]) -> nx.DiGraph[Node]:
    """Return the directed graph with these edges."""
    import networkx as nx

    return nx.DiGraph(edges)


def components(graph: nx.DiGraph[Node]) -> list[set[Node]]:
    """Return the strongly connected components of several nodes: only these have cycles.

    >>> components(graph_of([(0, 1), (1, 2), (2, 1)]))
    [{1, 2}]
    """
    import networkx as nx

    return [each for each in nx.strongly_connected_components(graph) if len(each) > 1]


def shortest_cycle(graph: nx.DiGraph[Node], start: Node) -> list[Node]:
    """Return the nodes of a shortest cycle through `start`, which comes first; empty if none.

    >>> shortest_cycle(graph_of([(0, 1), (0, 2), (1, 2), (2, 0)]), 0)
    [0, 2]
    """
    import networkx as nx

    ways = [
        nx.shortest_path(graph, after, start)
        for after in graph[start]
        if nx.has_path(graph, after, start)
    ]
    return [start, *min(ways, key=len)[:-1]] if ways else []
