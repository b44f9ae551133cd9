"""Write docs/operators.md: the table of operators, from the rows of `dtensor_core.operators`.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

from pathlib import Path

from dtensor_core.rules import markdown

TARGET = Path(__file__).parents[1] / "operators.md"

ABOUT = """\
# Operators

Written by `make docs` from the rows in `dtensor_core/operators/`: change the rows, not this
file. `python -m dtensor_core.rules` prints the same table as text.

A rule maps the placements of an operator's arguments to those of its results, for one mesh axis at
a time; the planner chooses the candidate that communicates least. In the notation a letter is a
size, shared by all dimensions that have this letter:

- `m k, k n -> m n`: each letter may be sharded, which shards every dimension it is in. A letter
  that the result lacks leaves partial sums, `Partial`.
- `d!` must be replicated; `(g i)` is one dimension of two letters, the outer one first; `s..` are
  any number of dimensions; terms separated by `+` are added.

"Partials that pass" need not be reduced before the operator runs: `sum, avg: 0 + 1 * 2` means that
argument 0 and one of 1 and 2 may both be a Partial of one of these reductions, all others being
replicated, and that the result is then a Partial too. Arguments are tensors, counted from 0. The
row's algebra decides: `Partial(sum)` passes linear operators, `Partial(max)` and `Partial(min)`
increasing ones, and every `Partial` passes data movement. A test over the full table shards the
arguments of each operator in every way that its row supports, runs the operator on the shards, and
compares with the full result.
"""

NOT_FINITE = """\
## Partial sums and non-finite values

A partial sum that passes an operator is scaled term by term: `(a + b) * c` is `a * c + b * c`. This
does not hold for infinities, nor if float16 overflows: `(3 - 5) * inf` is -inf, and
`3 * inf - 5 * inf` is nan. Guarantees for Partial(sum) and Partial(avg):

- **Numbers** (`p * inf`, `p / 0`, `alpha=`, `value=`): as on one device. Every rank knows them, so
  partial sums are reduced before an operation with an infinity, nan, or 0 as a divisor; those of
  float16 before any multiplication, since their terms may overflow where the sum does not.
- **Tensors** (`p * x`, `p / x`, `p @ w`, `addr`): an element of the result is finite if and only if
  it is on one device, and then has the same value. Other elements may differ in which of inf, -inf
  and nan they are: most are nan. Checking the values would require communication, which `p @ w`
  avoids. `p.redistribute(placements=[Replicate()])` before the operator is exact. A term of float16
  may overflow where the sum would not; bfloat16 has the range of float32.
- **Rounding** is relative to the terms: where they nearly cancel, `p / x` has fewer correct digits
  than on one device. torch's gradient of `sinc` near 0 is such a quotient.
- **Bits**: the sign of a zero and the bits of a nan may differ, which `view(torch.int64)` shows.
- **Along a sharded dimension**, reductions, scans, searches, softmax and norms are as on one
  device, nan and infinities included; and extremes of no elements raise as there.
- **Averages** of any floating type do not overflow if their terms do not: they are divided by a
  power of two before they are sent. Norms of half types are added in float32. A nan is the maximum,
  and the minimum, on every backend: extremes of floating-point numbers are sent as integers, those
  of half types in four bytes. Means of half types are float32 until they are divided.

`tests/dtensor_core/operators/test_not_finite_rows.py` tests the second guarantee for every row.

"""

DERIVED = """\
## Operators without a row

A row serves all overloads of its operator, and a row such as `max.dim` one of them.

- **In place** (`add_`) and with **`out=`**: by the row of the operator. A written tensor keeps
  its layout; if the rule does not support that layout, a redistributed copy is written and copied
  back.
- **Lists** (`_foreach_add`, fused optimizers): one decision per element, one call for all.
- **Elementwise operators** that torch tags as such: any dim may be sharded, and no Partial passes.
- **Composed operators** (`linear`, `tensordot`): torch decomposes them into those above.
- **Everything else** is decomposed with torch's decompositions if that sends less. The
  remaining operators run on full tensors, and warn once: `MissingRuleWarning`, an event with the
  reason `no rule` and its bytes. `dtensor_core.missing_rule` chooses "replicate", "warn" or
  "error".
"""

# Calls that raise on every rank before any communication: (call, error, reason).
RAISING = (
    ("x.resize_(2, 4)", "RuleError", "the shape of a tensor cannot change in place"),
    (
        "x + torch.ones(4, 4)",
        "MixedTensorError",
        "the layout of a plain tensor on the mesh is unknown; scalars and one-element tensors are "
        "accepted",
    ),
    (
        "p.relu_()",
        "RuleError",
        "it needs the reduced value, but partial sums that the caller passed are kept",
    ),
)

REFUSED = """\
## Calls that raise an error

The error is raised on every rank before any communication. `x` is sharded or replicated; `p`
is Partial, made by `DTensor.from_local`.

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
