"""Random graphs of work, and a second simulator of them, by relaxation of all edges in turn."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pandas as pd

from commtrace.analyze.replay.graph import (
    EDGES,
    LONG_AGO,
    POINTS,
    Links,
    Points,
    WorkGraph,
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A graph as lists.

    Attributes:
        origin: Earliest time of each point; None if it has none of its own.
        edges: Source, target and length of each edge.
    """

    origin: list[int | None]
    edges: list[tuple[int, int, int]]

    @property
    def num_points(self) -> int:
        """Number of points."""
        return len(self.origin)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return sources, targets, lengths and origins."""
        source, target, length = np.array(self.edges, dtype="int64").reshape(-1, 3).T
        origin = [LONG_AGO if each is None else each for each in self.origin]
        return source, target, length, np.array(origin, dtype="int64")

    def graph(self, random: Random) -> WorkGraph:
        """Return a graph of work, whose points and edges are of random sorts and ranks."""
        source, target, length, origin = self.arrays()
        num, times = self.num_points, simulated(self)
        points = Points.of(
            np.array([random.choice(POINTS) for _ in range(num)]),
            np.array([random.randrange(-1, 4) for _ in range(num)]),
            np.arange(num),
            np.array([-1 if time is None else time for time in times]),
        )
        sort = np.array([random.choice(EDGES) for _ in self.edges], dtype="int64")
        return WorkGraph(points, Links.of(source, target, length, sort), origin, pd.DataFrame())


def drawn(seed: int, *, has_cycles: bool = False) -> Drawn:
    """Return a random graph; times tie often, some lengths are negative or 0."""
    random = Random(seed)
    num = random.randrange(1, 25)
    names = list(range(num))
    random.shuffle(names)  # so that edges lead to lower numbers, too
    edges = []
    for _ in range(random.randrange(3 * num)):
        first, last = random.randrange(num), random.randrange(num)
        if not has_cycles:
            first, last = min(first, last), max(first, last)
            if first == last:
                continue
        edges.append((names[first], names[last], random.choice([0, 1, 2, 3, 5, 50, -4])))
    targets = {target for _, target, _ in edges}
    origin = [
        random.randrange(20) if point not in targets or random.random() < 0.15 else None
        for point in range(num)
    ]
    return Drawn(origin, edges)


def behind_cycles(graph: Drawn) -> set[int]:
    """Return the points of cycles, and those that edges lead to from there."""
    after = {point: reachable(graph, point) for point in range(graph.num_points)}
    on_cycle = {point for point, found in after.items() if point in found}
    return on_cycle.union(*(after[point] for point in on_cycle))


def reachable(graph: Drawn, start: int) -> set[int]:
    """Return the points that edges lead to from a point, itself only over a cycle."""
    found: set[int] = set()
    open_points = [start]
    while open_points:
        at = open_points.pop()
        for source, target, _ in graph.edges:
            if source == at and target not in found:
                found.add(target)
                open_points.append(target)
    return found


def simulated(graph: Drawn) -> list[int | None]:
    """Return the time of each point; None of the points that are never reached."""
    never = behind_cycles(graph)
    times = [LONG_AGO if each is None else each for each in graph.origin]
    edges = [edge for edge in graph.edges if edge[1] not in never]
    for _ in range(graph.num_points):
        for source, target, length in edges:
            times[target] = max(times[target], times[source] + length)
    return [None if point in never else time for point, time in enumerate(times)]
