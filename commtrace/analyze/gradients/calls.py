"""Reductions that a rank made between its own gradient and the reduced one, in words."""

from __future__ import annotations

from collections import Counter

import pandas as pd

_SCALARS = ("[]", "[1]", "")
"""Shapes of losses and norms, which are no gradients."""


def calls_between(
    calls: pd.DataFrame, rank: int, reduced: pd.DataFrame, locals_: pd.DataFrame | None
) -> tuple[str, str]:
    """Return the reductions, `2 all_reduce (sum) at train.py:31`, and the line of the first.

    Those of tensors of the parameter's shape are its own, and named first. Others may have carried
    the gradient in a bucket.
    """
    end = reduced.loc[reduced["rank"] == rank, "at_ns"]
    begin = locals_.loc[locals_["rank"] == rank, "at_ns"] if locals_ is not None else end[:0]
    if end.empty or begin.empty:
        return "", ""
    own = calls[
        (calls["rank"] == rank)
        & (calls["issue_ns"] >= begin.min())
        & (calls["issue_ns"] <= end.max())
        & ~calls["input_shapes"].isin(_SCALARS)
    ]
    shape = str(reduced["shape"].iloc[0])
    exact = own[(own["input_shapes"] == shape) | (own["output_shapes"] == shape)]
    shown = exact if len(exact) else own
    if shown.empty:
        return "none", ""
    lines = Counter(
        (kind, how, f"{file}:{line}" if file else "")
        for kind, how, file, line in zip(
            shown["kind"], shown["reduce_op"], shown["source_file"], shown["source_line"],
            strict=True,
        )
    )  # fmt: skip
    what = "" if len(exact) else " of buckets"
    texts = [
        f"{number} {kind} ({how}){what}" + (f" at {line}" if line else "")
        for (kind, how, line), number in lines.most_common(4)
    ]
    return ", ".join(texts), next(iter(lines))[2]
