"""torch.nn.attention.flex_attention: the function whose code is replaced, and its block masks."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from torch.nn.attention import flex_attention as module

import dtensor_core


def test_the_function_is_plain_and_its_code_can_be_replaced() -> None:
    assert dtensor_core
    original: Any = inspect.unwrap(module.flex_attention)
    for function in (module.flex_attention, original):
        assert isinstance(function, FunctionType)
        assert not function.__code__.co_freevars
    names = list(inspect.signature(original).parameters)
    assert names[:5] == ["query", "key", "value", "score_mod", "block_mask"]


def test_a_block_mask_is_made_of_its_blocks_of_keys() -> None:
    names = list(inspect.signature(module.BlockMask.from_kv_blocks).parameters)
    assert names[:7] == [
        "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "BLOCK_SIZE",
        "mask_mod", "seq_lengths",
    ]  # fmt: skip
