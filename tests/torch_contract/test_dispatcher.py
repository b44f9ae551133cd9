"""torch's dispatcher is what `torch_internals.dispatcher` says of both packages."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from commtrace.torch_internals import dispatcher as recorders
from dtensor_core.torch_internals import dispatcher

aten = torch.ops.aten


class Seen(dispatcher.TorchDispatchMode):
    """Mode that notes the operators that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_an_overload_is_an_operator_with_a_schema_and_kernels_by_key() -> None:
    op: Any = aten.add.Tensor
    assert isinstance(op, dispatcher.OpOverload)
    assert (op.namespace, op.name(), op._overloadname) == ("aten", "aten::add.Tensor", "Tensor")
    assert [each.name for each in op._schema.arguments] == ["self", "other", "alpha"]
    assert not op._schema.is_mutable
    assert aten.add_.Tensor._schema.is_mutable
    assert callable(op._handle.redispatch_boxed)


def test_composites_run_their_own_kernel_by_key() -> None:
    key = dispatcher.COMPOSITE_IMPLICIT
    matmul, clone = aten.matmul.default, aten.clone.default
    assert matmul.has_kernel_for_dispatch_key(key)
    assert clone.has_kernel_for_dispatch_key(dispatcher.COMPOSITE_EXPLICIT)
    assert not aten.mm.default.has_kernel_for_dispatch_key(key)
    with Seen() as seen:
        made = matmul._op_dk(key, torch.ones(2, 3), torch.ones(3, 2))
    assert made.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert "aten::mm" in seen.names
    assert "aten::matmul" in dispatcher.names_with_kernel(key.name)


def test_keys_of_devices_have_kernels() -> None:
    key = dispatcher.key_of_device("cpu")
    assert dispatcher.has_kernel("aten::mm", key)
    assert not dispatcher.has_kernel("aten::_fused_rms_norm", key)


def test_python_kernels_are_preferred_only_while_torch_traces() -> None:
    assert not dispatcher.is_included(dispatcher.PYTHON_KERNELS)
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher():
        assert dispatcher.is_included(dispatcher.PYTHON_KERNELS)
        with dispatcher.without_python_kernels():
            assert not dispatcher.is_included(dispatcher.PYTHON_KERNELS)


def test_subclasses_are_handled_ahead_of_autograd_at_a_key_of_their_own() -> None:
    from dtensor_core import DTensor, Replicate, init_device_mesh
    from dtensor_core.testing.fake import fake_world

    with fake_world(1):
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.ones(1), mesh, [Replicate()])
        assert torch._C._dispatch_keys(tensor).has(dispatcher.AHEAD_OF_AUTOGRAD)
        with dispatcher.without_torch_dispatch():
            assert type(tensor.view(1, 1)) is torch.Tensor  # no rule, and no local tensor


def test_lazy_bits_are_excluded_and_included_by_thread() -> None:
    dispatch: Any = torch._C
    conjugate = dispatch.DispatchKey.Conjugate
    assert dispatcher.LAZY_BITS.has(conjugate)
    assert dispatcher.LAZY_BITS.has(dispatch.DispatchKey.Negative)
    excluded = dispatcher.excluded_keys() | dispatcher.LAZY_BITS
    with dispatcher.with_keys(dispatcher.included_keys(), excluded):
        assert dispatcher.excluded_keys().has(conjugate)
    assert not dispatcher.excluded_keys().has(conjugate)


def test_below_autograd_operators_have_no_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    with dispatcher.below_autograd():
        assert not (x * 2).requires_grad
    with dispatcher.below_inplace_or_view():
        assert not x.view(2)._is_view()
        version = x._version
        x.add_(1)
        assert x._version == version
    assert (x * 2).requires_grad


def test_contexts_hide_tensors_and_modes_from_python() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            raise AssertionError(func)

    loud = torch.ones(1).as_subclass(Loud)
    with dispatcher.without_torch_function():
        assert torch.add(loud, 1).numel() == 1
    with Seen() as seen, dispatcher.no_dispatch_modes():
        torch.ones(1)
    assert seen.names == []


def test_modes_are_counted_and_read_in_order() -> None:
    assert dispatcher.num_dispatch_modes() == dispatcher.num_function_modes() == 0
    assert recorders.current_mode() is None
    with Seen() as outer, Seen() as inner:
        assert dispatcher.num_dispatch_modes() == 2
        assert dispatcher.dispatch_mode_at(0) is outer
        assert recorders.current_mode() is inner
        assert recorders.pop_mode(None) is inner
        assert dispatcher.num_dispatch_modes() == 1
        recorders.push_mode(inner)
    with TorchFunctionMode():
        assert dispatcher.num_function_modes() == 1


def test_flags_of_modes_are_read_and_set() -> None:
    before = dispatcher.mode_flags()
    assert set(before) == set(dispatcher.MODE_FLAGS)
    assert not any(before.values())
    with Seen():
        assert dispatcher.mode_flags()[dispatcher.MODE_FLAGS[0]]
        dispatcher.set_mode_flags(before)
        assert dispatcher.mode_flags() == before
    dispatcher.set_mode_flags(before)


def test_overloads_are_resolved_from_arguments() -> None:
    assert dispatcher.resolve_overload("aten::add", torch.ones(1), 2) == "Tensor"
    assert dispatcher.resolve_overload("aten::pow", 2, torch.ones(1)) == "Scalar"


def test_decompositions_are_found_by_overload() -> None:
    decomposition = dispatcher.decompositions()[aten.mse_loss.default]
    assert decomposition(torch.ones(2), torch.zeros(2)).item() == 1.0


def test_the_recorders_key_is_after_autograd_and_before_the_backends() -> None:
    after = recorders.AFTER_BACKEND_SELECT
    assert after.has(recorders.CPU)
    assert not after.has(recorders.BACKEND_SELECT)
    assert not after.has(torch._C.DispatchKey.AutogradCPU)
    keys = torch._C._dispatch_keys(torch.ones(1))
    assert recorders.keys_of(keys.raw_repr()) == keys


def test_a_thread_excludes_and_includes_keys() -> None:
    key = recorders.BACKEND_SELECT
    for change, is_changed in (
        (recorders.exclude, recorders.is_excluded),
        (recorders.include, recorders.is_included),
    ):
        before = is_changed(key)
        change(key, True)
        assert is_changed(key)
        change(key, False)
        assert not is_changed(key)
        change(key, before)


def test_operators_are_known_by_name_with_their_schemas() -> None:
    assert recorders.has_operator("c10d::allreduce_")
    assert not recorders.has_operator("c10d::no_such_operator")
    assert recorders.schemas_of("no_such::operator") == []
    (schema,) = recorders.schemas_of("c10d::allreduce_")
    assert schema.name == "c10d::allreduce_"
    assert "process_group" in {argument.name for argument in schema.arguments}
    assert schema.name in {each.name for each in recorders.schemas()}


def test_transforms_are_switched_off_for_a_context() -> None:
    plain = torch.ones(2)
    seen: list[torch.Tensor] = []

    def function(tensor: torch.Tensor) -> torch.Tensor:
        with recorders.no_transforms():
            seen.append(plain + 1)
        return (tensor * plain).sum()

    assert torch.func.grad(function)(plain).tolist() == [1, 1]
    assert seen[0].data_ptr()


def test_modes_of_functions_are_switched_off_for_a_context() -> None:
    with torch.device("meta"):
        assert torch.ones(1).is_meta
        with recorders.no_torch_functions():
            assert torch.ones(1).is_cpu
        assert torch.ones(1).is_meta


def test_a_tensor_has_the_keys_by_which_its_operators_are_dispatched() -> None:
    below = recorders.keys_of_tensor(torch.ones(1)) & recorders.AFTER_BACKEND_SELECT
    assert below == torch._C.DispatchKeySet(recorders.CPU)


def test_modes_are_counted() -> None:
    assert recorders.num_modes() == 0
    with Seen():
        assert recorders.num_modes() == 1
