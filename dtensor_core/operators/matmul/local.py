"""Matrix products of local shards: row alignment of grouped kernels, biases of empty sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, is_empty_here, standing_for
from dtensor_core.spec import Spec

_BYTES = 16  # alignment of the address and of the stride of each row


def grouped_product(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the operator, copying local matrices that lack the full matrices' alignment."""
    if all(spec is not None and is_empty_here(spec) for spec in outputs):
        return op

    def product(x: torch.Tensor, y: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        return op(_aligned(x), _aligned(y), *rest, **kwargs)

    return standing_for(op, product)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """Return the matrix, or a copy with padded rows; the kernel accepts transposed matrices too."""
    size, stride = x.shape[-2:], x.stride()[-2:]
    per_row = max(_BYTES // x.element_size(), 1)
    for along, across in ((1, 0), (0, 1)):
        fits = stride[along] == 1 and stride[across] >= max(size[along], 1)
        if fits and stride[across] % per_row == 0 and x.storage_offset() % per_row == 0:
            return x
    width = max(-(-size[1] // per_row), 1) * per_row
    return x.new_empty((*x.shape[:-1], width)).narrow(-1, 0, size[1]).copy_(x)


def expanding_bias(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Expand the bias to the result's shape, since the kernel ignores it if a rank's k is empty."""
    out = outputs[0]
    if out is None or inputs[1].local_shape[1] or inputs[0].shape == out.shape:
        return op
    return lambda x, *args, **kwargs: op(x.expand(out.local_shape), *args, **kwargs)
