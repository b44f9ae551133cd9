"""Runs of the scan of torch's operator database: layouts of arguments and variants of operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.opdb import derivatives


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pass over the database.

    Attributes:
        uneven: Allow shards of unequal or zero size.
        partials: Reductions for which partial placements are tried.
        variant: "forward", or the gradient ("backward"), the in-place form ("inplace") or the form
            with `out=` ("out").
    """

    name: str
    mesh: tuple[int, ...] = (4,)
    uneven: bool = False
    partials: tuple[str, ...] = ()
    variant: str = "forward"
    dtype: torch.dtype = torch.float32


RUNS = {
    run.name: run
    for run in (
        Run(name="forward"),
        Run(name="uneven", uneven=True),
        Run(name="partial", partials=("sum", "avg", "max", "min")),
        Run(name="backward", uneven=True, partials=("sum",), variant="backward"),
        Run(name="inplace", uneven=True, partials=("sum", "max"), variant="inplace"),
        Run(name="out", uneven=True, variant="out"),
        *(
            Run(name=name, uneven=True, partials=("sum",), variant=name, dtype=torch.float64)
            for name in derivatives.BY_NAME
        ),
        Run(name="mesh2x2", mesh=(2, 2), uneven=True, partials=("sum",)),
        Run(name="float64", uneven=True, partials=("sum",), dtype=torch.float64),
        Run(name="bfloat16", uneven=True, dtype=torch.bfloat16),
        Run(name="int64", uneven=True, partials=("sum",), dtype=torch.int64),
        Run(name="bool", uneven=True, dtype=torch.bool),
        Run(name="complex64", uneven=True, partials=("sum",), dtype=torch.complex64),
    )
}
