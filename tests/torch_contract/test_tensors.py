"""Tensors, nested values and placements of torch are what `torch_internals` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from commtrace.torch_internals.tensors import address_of, awaited_tensor, dtype_abbrs
from dtensor_core.torch_internals import placements, tensors, trees


class Wrapper(torch.Tensor):
    """A tensor around another tensor."""

    __slots__ = ("_local_tensor", "_spec")
    __torch_function__ = tensors.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def test_a_dtensor_has_the_metadata_of_its_spec_and_keeps_its_local_tensor() -> None:
    local = torch.ones(2, 3)
    meta = SimpleNamespace(shape=torch.Size((4, 3)), stride=(3, 1), dtype=torch.float32)
    spec = SimpleNamespace(tensor_meta=meta)
    made = tensors.new_dtensor(Wrapper, local, spec, False)
    assert (tuple(made.shape), made.stride(), made.requires_grad) == ((4, 3), (3, 1), False)
    assert made._local_tensor is local
    assert made._spec is spec


def test_a_wrapper_has_a_size_and_no_memory() -> None:
    made = tensors.make_wrapper(Wrapper, torch.Size((2,)), dtype=torch.int8, device="cpu")
    assert (type(made), tuple(made.shape), made.dtype) == (Wrapper, (2,), torch.int8)
    with pytest.raises(RuntimeError, match="invalid python storage"):
        made.untyped_storage().data_ptr()


def test_the_data_of_a_tensor_is_read_and_replaced_through_a_descriptor() -> None:
    x = torch.ones(2)
    assert tensors.data_attribute.__get__(x).tolist() == [1.0, 1.0]
    tensors.data_attribute.__set__(x, torch.zeros(2))
    assert x.tolist() == [0.0, 0.0]


def test_views_are_aliases_and_copies_are_not() -> None:
    x = torch.ones(2, 2)
    assert tensors.is_alias_of(x[0], x)
    assert not tensors.is_alias_of(x.clone(), x)
    assert x[0]._is_view()
    assert x[0]._base is x
    assert torch._C._is_alias_of is tensors.is_alias_of


def test_a_zero_tensor_is_distinguished_from_zeros() -> None:
    assert torch._efficientzerotensor(2)._is_zerotensor()
    assert not torch.zeros(2)._is_zerotensor()


def test_a_plain_tensor_belongs_to_no_functionalization() -> None:
    assert not tensors.is_functional(torch.ones(1))
    assert tensors.is_functional(torch._to_functional_tensor(torch.ones(1)))


def test_an_assertion_on_a_device_raises_if_the_element_is_false() -> None:
    tensors.assert_on_device(torch.tensor(True), "fine")
    with pytest.raises(RuntimeError, match="not fine"):
        tensors.assert_on_device(torch.tensor(False), "not fine")


def test_fake_tensors_have_no_data() -> None:
    with tensors.FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
        assert isinstance(fake, tensors.FakeTensor)
        with pytest.raises(tensors.DataDependentOutputException):
            fake[0].item()
        with pytest.raises(tensors.DynamicOutputShapeException):
            fake.nonzero()


def test_a_result_that_is_not_awaited_yet_stands_for_a_tensor() -> None:
    tensor = torch.ones(2)
    assert awaited_tensor(tensor) is tensor
    assert awaited_tensor(AsyncCollectiveTensor(tensor)) is tensor


def test_storages_have_addresses_unless_they_are_fake_or_empty() -> None:
    tensor = torch.ones(4)
    assert address_of(tensor[1:]) == address_of(tensor) == tensor.data_ptr()
    with FakeTensorMode():
        fake = torch.ones(4)
        assert address_of(fake[1:]) == address_of(fake) == -fake.untyped_storage()._cdata < -1
    meta = torch.ones(4, device="meta")
    assert address_of(meta) == -meta.untyped_storage()._cdata
    assert address_of(torch.ones(0)) == -1


def test_dtypes_have_short_names() -> None:
    assert dtype_abbrs[torch.float32] == "f32"


def test_nested_values_are_taken_apart_and_put_together() -> None:
    nested = {"a": [1, (2.0, None)]}
    leaves, structure = trees.tree_flatten(nested)
    assert leaves == trees.tree_leaves(nested)
    assert [each for each in leaves if each is not None] == [1, 2.0]
    assert trees.tree_unflatten(leaves, structure) == nested
    assert trees.tree_map(str, [1, (2,)]) == ["1", ("2",)]
    assert trees.tree_map_only(int, str, [1, (2.0,)]) == ["1", (2.0,)]


def test_placements_of_torch_are_distinguished_by_their_classes() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    assert isinstance(Shard(1), placements.Shard)
    assert Shard(1).dim == 1
    strided = _StridedShard(0, split_factor=2)
    assert isinstance(strided, placements.StridedShard)
    assert strided.split_factor == 2
    assert isinstance(Replicate(), placements.Replicate)
    assert isinstance(Partial("max"), placements.Partial)
    assert Partial("max").reduce_op == "max"
