"""torch.utils.data: the class of its iterators."""

from __future__ import annotations

import sys
from typing import Any


def loader_iterator_class() -> Any:
    """Return the base class of the iterators of data loaders; None before they are loaded."""
    module = sys.modules.get("torch.utils.data.dataloader")
    return getattr(module, "_BaseDataLoaderIter", None)


def num_batches(iterator: Any) -> int:
    """Return the number of batches that an iterator of a data loader has yielded."""
    return int(iterator._num_yielded)
