"""Write docs/operators.md: the table of operators, from the rows of `dtensor_core.operators`.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

from pathlib import Path

from dtensor_core.rules import markdown

TARGET = Path(__file__).with_name("operators.md")

ABOUT = """\
# Operators

Written by `make docs` from the rows in `dtensor_core/operators/`: change the rows, not this
file. `python -m dtensor_core.rules` prints the same table as text.

A rule says how the results of an operator lie for each way in which its arguments may, one mesh
axis at a time; `dtensor_core` takes the way for which the least has to be moved. In the notation a
letter is a size, shared wherever it stands:

- `m k, k n -> m n`: each letter may be sharded, which shards every dimension it is in. A letter
  that the result lacks leaves partial sums, `Partial`.
- `d!` must be replicated; `(g i)` is one dimension of two letters, the outer one first; `s..` are
  any number of dimensions; what stands behind a `+` is added to what stands before.

"Partials that pass" need not be reduced before the operator runs: `sum, avg: 0 + 1 * 2` means that
argument 0 and one of 1 and 2 may both be a Partial of one of these reductions, all others being
replicated, and that the result is one then too. Arguments are tensors, counted from 0. What passes
follows from the row's algebra: sums pass what is linear, extremes what is increasing, and all pass
what only moves elements. A test over the whole table splits the arguments of each operator in
every way that its row offers, runs the operator on the parts, and compares with the full result.
"""

NOT_FINITE = """\
## Sums that are pending, and what is not finite

A sum that passes an operator is scaled term by term: `(a + b) * c` is `a * c + b * c`. With
infinities, and where halves overflow, that does not hold: `(3 - 5) * inf` is -inf, and
`3 * inf - 5 * inf` is nan. What is promised of Partial(sum) and Partial(avg):

- **Numbers** (`p * inf`, `p / 0`, `alpha=`, `value=`): as on one device. Every rank knows them, so
  sums are reduced before they meet an infinity, nan, or 0 as a divisor; and those of float16 before
  they meet any factor, for their terms may overflow where they do not.
- **Tensors** (`p * x`, `p / x`, `p @ w`, `addr`): an element of the result is finite if and only if
  it is on one device, and then has the same value. Which of inf, -inf and nan it is otherwise may
  differ: mostly it is nan. The values are not known without communication, and `p @ w` does
  without. `p.redistribute(placements=[Replicate()])` before the operator is exact. A term of
  float16 may overflow where the sum would not; bfloat16 has the range of float32.
- **Rounding** is relative to the terms: where they nearly cancel, `p / x` has fewer correct digits
  than on one device. torch's gradient of `sinc` near 0 is such a quotient.
- **Bits**: the sign of a zero and the bits of a nan may differ, which `view(torch.int64)` shows.
- **Along a sharded dimension**, reductions, scans, searches, softmax and norms are as on one
  device, nan and infinities included; and extremes of no elements raise as there.
- **Averages** of any floating type fit where their terms do: they are divided by a power of two
  before they are sent. Norms of half types are added up in float32. A nan is the maximum, and the
  minimum, whatever the backend makes of it: extremes of floating numbers are sent as integers,
  those of half types in four bytes. Means of half types are float32 until they are divided.

`tests/dtensor_core/operators/test_not_finite_rows.py` tries the second over the whole table.

"""

DERIVED = """\
## What needs no row

A row serves all overloads of its operator, and a row such as `max.dim` one of them.

- **In place** (`add_`) and with **`out=`**: by the row of the operator. What is written keeps its
  layout; where the rule does not offer that it is written in another one and brought back.
- **Lists** (`_foreach_add`, fused optimizers): one decision an element, one call for all.
- **Elementwise operators** that torch tags as such: any dim may be sharded, and no Partial passes.
- **Composed operators** (`linear`, `tensordot`): torch decomposes them into those above.
- **Everything else** is put together from torch's own decomposition where that sends less. What
  remains runs on full tensors, and says so once: `MissingRuleWarning`, an event with the reason
  `no rule` and its bytes. `dtensor_core.missing_rule` chooses "replicate", "warn" or "error".
"""

# Calls that raise on all ranks alike, before anything is sent: (call, error, reason).
RAISING = (
    ("x.resize_(2, 4)", "RuleError", "what is written in place keeps its shape"),
    (
        "x + torch.ones(4, 4)",
        "MixedTensorError",
        "how a plain tensor lies on the mesh is not known; numbers and tensors of one are taken",
    ),
    (
        "p.relu_()",
        "RuleError",
        "its value needs the sum of partial values that the caller gave, and keeps",
    ),
)

REFUSED = """\
## What raises

On every rank alike, before anything is sent. `x` is sharded or replicated; `p` is Partial, given to
`DTensor.from_local`.

| call | error | why |
| --- | --- | --- |
"""


def render() -> str:
    """Render the document."""
    raising = "".join(f"| `{call}` | `{error}` | {why} |\n" for call, error, why in RAISING)
    return "\n".join([ABOUT, markdown(), NOT_FINITE, DERIVED, REFUSED + raising])


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
