"""Write docs/bytes.md: payload, wire bytes and bandwidth of each kind of communication.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

from pathlib import Path

from commtrace.collective_table import KINDS

TARGET = Path(__file__).parents[1] / "bytes.md"

ABOUT = """\
# Sizes and bandwidths

Written by `make docs` from `commtrace/collective_table.py`: change that or
`docs/generate/bytes.py`, not this file.

Every communication call is recorded with two sizes.

**Payload** (`payload_bytes`) is the size that bandwidth is computed from: the *S* of nccl-tests,
equal on all ranks of the group. It is the size in "an all-reduce of 4 MB".

**Wire bytes** (`wire_bytes`) are the bytes that this rank sends for the call if the ranks of the
group form a ring, as NCCL does for large messages. No algorithm can send less for an all-gather or
a reduce-scatter. Wire bytes of different kinds can be added, payloads can't: an all-reduce of 1 MB
moves as much as a reduce-scatter and an all-gather of 1 MB, by which sequence parallelism replaces
it. They are a model, not a measurement of a network card; a tree, a hierarchy of links or a switch
that reduces moves other amounts. A size that does not divide by the number of ranks is rounded up
to a whole byte.

The time of a call gives two bandwidths, in GB/s with GB = 10⁹ bytes, as in nccl-tests: **algbw** =
payload / time, and **busbw** = algbw × factor. busbw can be compared with the speed of a link,
whatever the number of ranks.

S is the payload, n the number of ranks of the group. In the ring the root is first. Latencies are
phases that begin only once the one before has ended.

| kind | payload S | part of S that a rank sends | busbw factor | latencies |
| --- | --- | --- | --- | --- |
"""

END = """\

An all-to-all with splits sends the sizes of its splits: the payload without the part that the rank
keeps.

`dtensor_core` plans with the same numbers: a step takes its latencies plus its wire bytes divided
by the bandwidth of the link. **Planned bytes** (`planned_bytes`) are the payload that it announced
before it issued the call. They equal the recorded payload; a test compares them for every call of
the example.

Source: nccl-tests, `doc/PERFORMANCE.md`.
"""


def render() -> str:
    """Render the document."""
    rows = [
        f"| {name} | {kind.payload} | {kind.sent.formula} | {kind.busbw_factor.formula} | "
        f"{kind.latencies} |\n"
        for name, kind in KINDS.items()
    ]
    return ABOUT + "".join(rows) + END


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
