"""Texts of dtypes, shapes and sizes in the columns of calls and operators."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=64)
def dtype_text(dtype: Any) -> str:
    """Return the name of an element type; empty for None."""
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


@lru_cache(maxsize=64)
def splits_text(sizes: tuple[int, ...]) -> str:
    """Return sizes joined by commas."""
    return ",".join(map(str, sizes))


_shape_texts: dict[Any, str] = {}


def shapes_text(shapes: tuple[Any, ...]) -> str:
    """Return shapes as columns have them, `[8,16];[4]`."""
    text = _shape_texts.get(shapes)
    if text is None:
        if len(_shape_texts) > 10_000:
            _shape_texts.clear()
        text = ";".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        _shape_texts[shapes] = text
    return text
