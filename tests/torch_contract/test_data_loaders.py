"""torch.utils.data is what `torch_internals.data_loaders` says."""

from __future__ import annotations

import sys

import pytest
from torch.utils.data import DataLoader

from commtrace.torch_internals.data_loaders import loader_iterator_class, num_batches


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterators_have_one_base_class_and_count_their_batches(num_workers: int) -> None:
    iterator = iter(DataLoader([1, 2, 3], batch_size=2, num_workers=num_workers))
    base = loader_iterator_class()
    assert isinstance(iterator, base)
    assert "__next__" not in vars(type(iterator))
    assert [num_batches(iterator) for _ in iterator] == [1, 2]


def test_there_is_none_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.data.dataloader")
    assert loader_iterator_class() is None
