"""Cost of fingerprints: training steps of tensors of megabytes, without and with them.

A step of a feed-forward network is timed alternately without and with a recording, on a single
thread. A run in which every Nth step has fingerprints is estimated from such a step and from those
between them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import commtrace

WIDTH, BATCH, NUM_LAYERS = 512, 1024, 4
"""Matrices have 4 MB, outputs 2 MB and more."""
BARS = {"module": 1.3, "op": 2.5}
EVERY, MOST_SHARE = 50, 0.05
_PIPED_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor times of a step in ns, of each round."""

    level: str
    plain_ns: list[int]
    recorded_ns: list[int]

    @property
    def ratio(self) -> float:
        """Time with fingerprints over the time without a recording; median over rounds."""
        pairs = zip(self.recorded_ns, self.plain_ns, strict=True)
        return statistics.median(recorded / plain for recorded, plain in pairs)


def model() -> nn.Module:
    """Return a network of feed-forward layers with norms."""
    layers = [
        nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        for _ in range(NUM_LAYERS)
    ]
    return nn.Sequential(*layers)


def step_of(network: nn.Module) -> Callable[[], None]:
    """Return a training step of a network."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        network(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cost_of(level: str, num_steps: int = 9) -> Cost:
    """Time steps alternately without and with fingerprints of a level."""
    step = step_of(model())
    times: dict[bool, list[int]] = {False: [], True: []}
    recording = commtrace.record(values=level)
    step()
    with recording:
        step()
    for _ in range(num_steps):
        times[False].append(_timed(step))
        with recording:
            times[True].append(_timed(step))
    return Cost(level, times[False], times[True])


def cost_between(level: str, num_steps: int = 9) -> Cost:
    """Time the steps of a recording that have no fingerprints, since only every Nth step has."""
    step = step_of(model())
    recording = commtrace.record(values=level, every=EVERY)
    with recording:
        step()
        recording.step()
    plain, between = [], []
    for _ in range(num_steps):
        plain.append(_timed(step))
        with recording:
            between.append(_timed(step))
            recording.step()
    return Cost(level, plain, between)


def _timed(step: Callable[[], None]) -> int:
    begin = time.process_time_ns()
    step()
    return time.process_time_ns() - begin


def main() -> int:
    """Print the costs; return 1 if a bar is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9, help="steps of each kind")
    num_steps = parser.parse_args().steps
    torch.set_num_threads(1)
    # Fingerprints that fail cost nothing.
    warnings.simplefilter("error", RuntimeWarning)
    costs = [cost_of(level, num_steps) for level in BARS]
    table = Table("level", "without", "with", "ratio", "bar")
    are_kept = True
    for cost in costs:
        are_kept &= cost.ratio <= BARS[cost.level]
        times = [
            f"{statistics.median(each) / 1e6:.1f} ms" for each in (cost.plain_ns, cost.recorded_ns)
        ]
        table.add_row(cost.level, *times, f"{cost.ratio:.2f}", f"{BARS[cost.level]:.2f}")
    between = cost_between(costs[-1].level, num_steps)
    share = (costs[-1].ratio - 1) / EVERY + (between.ratio - 1) * (1 - 1 / EVERY)
    are_kept &= share <= MOST_SHARE
    table.add_row(f"op, every {EVERY}th step", "", "", f"{1 + share:.3f}", f"{1 + MOST_SHARE:.2f}")
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(table)
    return not are_kept


if __name__ == "__main__":
    sys.exit(main())
