"""Metadata of results derived without an operator's meta kernel equals the kernel's."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Replicate, Shard, init_device_mesh
from dtensor_core.dispatch.arguments import converted, spec_on
from dtensor_core.dispatch.cache import CACHE
from dtensor_core.dispatch.metadata import output_metadata as module
from dtensor_core.dispatch.metadata.output_metadata import output_metadata
from dtensor_core.dispatch.metadata.shortcuts import shortcut_metadata
from dtensor_core.experimental import implicit_replication
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing.fake import fake_world

aten = torch.ops.aten
F32, F64, BF16, I64, BOOL = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.bool,
)


def _t(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _pointwise() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    shapes = [
        ((4, 6), (4, 6)),
        ((4, 6), (6,)),
        ((6,), (4, 6)),
        ((4, 1), (1, 6)),
        ((4, 6), ()),
        ((), ()),
        ((0, 6), (1, 6)),
        ((3, 1, 5), (1, 5)),
        ((1, 1), (1,)),
    ]
    for first, second in shapes:
        for a, b in ((F32, F32), (F64, F32), (BF16, BF16), (F32, I64), (I64, I64), (BOOL, F32)):
            x, y = _t(*first, dtype=a), _t(*second, dtype=b)
            yield aten.add.Tensor, (x, y), {"alpha": 2}
            yield aten.maximum.default, (x, y), {}
            yield aten.gt.Tensor, (x, y), {}
            yield aten.div.Tensor, (x, y), {}
            yield aten.div.Tensor_mode, (x, y), {"rounding_mode": "floor"}
            yield aten.where.self, (_t(*first, dtype=BOOL), x, y), {}
            yield aten.masked_fill.Scalar, (x, _t(*second, dtype=BOOL), 0.5), {}
        yield aten.addcmul.default, (_t(*first), _t(*second), _t(*first)), {"value": 0.5}
    for x in (
        _t(4, 6).t(),
        _t(4, 6)[:, ::2],
        _t(4, 1).expand(4, 6),
        _t(2, 3, 4, 5).transpose(1, 2),
    ):
        yield aten.mul.Tensor, (x, x), {}
        yield aten.add.Tensor, (x, _t(*x.shape)), {}
        yield aten.gelu.default, (x,), {"approximate": "tanh"}
        yield aten._softmax.default, (x, -1, False), {}
        yield aten.mean.dim, (x, [0]), {}
    for scalar in (2, 2.5, True, 1j):
        for dtype in (F32, BF16, I64):
            yield aten.mul.Tensor, (_t(4, 6, dtype=dtype), scalar), {}
            if scalar != 1j:
                yield aten.le.Scalar, (_t(4, 6, dtype=dtype), scalar), {}
            yield aten.pow.Tensor_Scalar, (_t(4, 6, dtype=dtype), scalar), {}
    for name in ("neg", "abs", "reciprocal", "sqrt", "rsqrt", "exp", "log", "sin", "tanh", "relu"):
        for dtype in (F32, F64, BF16):
            yield getattr(aten, name).default, (_t(3, 5, dtype=dtype),), {}
    x = _t(3, 5)
    for name in ("gelu_backward", "silu_backward", "sigmoid_backward"):
        yield getattr(aten, name).default, (x, x), {}
    yield aten.tanh_backward.default, (x, x), {}
    yield aten.threshold_backward.default, (x, x, 0), {}
    yield aten.lerp.Scalar, (x, x, 0.5), {}
    yield aten.add_.Tensor, (x, _t(5)), {}
    yield aten.masked_fill_.Scalar, (x, _t(5, dtype=BOOL), 1.0), {}


def _others() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for dtype in (F32, F64, BF16):
        for shape in ((4, 6), (2, 3, 5), (1, 1), (7,)):
            x = _t(*shape, dtype=dtype)
            yield aten._softmax.default, (x, 0, False), {}
            yield aten._log_softmax.default, (x, -1, False), {}
            yield aten._softmax_backward_data.default, (x, x, -1, dtype), {}
            yield aten._log_softmax_backward_data.default, (x, x, 0, dtype), {}
            yield aten.native_dropout.default, (x, 0.5, True), {}
            for dims in ([0], [-1], list(range(len(shape))), None):
                yield aten.mean.dim, (x, dims, True), {}
                yield aten.mean.dim, (x, dims), {}
                yield aten.sum.dim_IntList, (x, dims), {}
                yield aten.sum.dim_IntList, (x, dims, True), {}
            yield aten.sum.default, (x,), {}
            yield aten.mean.dim, (x, [0]), {"dtype": F64}
            yield aten.mean.default, (x,), {}
            for dim in (0, -1):
                yield aten.cat.default, ([x, x, x], dim), {}
        x, w = _t(4, 6, 5, dtype=dtype), _t(5, dtype=dtype)
        mean = _t(4, 6, 1, dtype=dtype)
        for weight, bias in ((w, w), (w, None), (None, None)):
            yield aten.native_layer_norm.default, (x, [5], weight, bias, 1e-5), {}
            for wanted in ([True, True, True], [True, False, False], [False, True, False]):
                if weight is not None and (bias is not None or not wanted[2]):
                    arguments = (x, x, [5], mean, mean, weight, bias, wanted)
                    yield aten.native_layer_norm_backward.default, arguments, {}
        for bias in (_t(8, dtype=dtype), _t(4, 8, dtype=dtype), _t(1, dtype=dtype)):
            arguments = (bias, _t(4, 3, dtype=dtype), _t(3, 8, dtype=dtype))
            yield aten.addmm.default, arguments, {}
    yield aten.sum.default, (_t(3, 4, dtype=I64),), {}
    yield aten.sum.dim_IntList, (_t(3, 4, dtype=BOOL), [0]), {}
    for left, right in ((_t(4, 3), _t(3, 5)), (_t(4, 3), _t(5, 3).t()), (_t(0, 3), _t(3, 5))):
        yield aten.mm.default, (left, right), {}
        batched = (left.expand(2, *left.shape), right.expand(2, *right.shape))
        yield aten.bmm.default, batched, {}
    yield aten.bmm.default, (_t(2, 4, 3).transpose(0, 1), _t(4, 3, 5)), {}
    yield aten.cat.default, ([_t(2, 3), _t(4, 3)],), {}
    yield aten.cat.default, ([_t(2, 3), _t(2, 3, dtype=F64)], 1), {}
    yield aten.addmm.default, (_t(8), _t(4, 3), _t(8, 3).t()), {}


def _specs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mesh = init_device_mesh("cpu", (2,))

    def spec_of(tensor: torch.Tensor) -> Spec:
        meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
        return Spec(mesh, (Replicate(),), meta)

    return converted(torch.Tensor, spec_of, args, kwargs)


@pytest.mark.parametrize("calls", [_pointwise, _others])
def test_a_shortcut_agrees_with_the_kernel(calls) -> None:
    num_short = 0
    with fake_world(2):
        for op, args, kwargs in calls():
            given = _specs(args, kwargs)
            expected = module._by_kernel(op, *given)
            found = shortcut_metadata(op, *given)
            text = f"{op} {[getattr(a, 'text', a) for a in given[0]]} {kwargs}"
            assert found in (None, expected), text
            num_short += found is not None
    assert num_short > 50


def _library() -> tuple[torch.library.Library, Any]:
    """Operators whose kernels fail without data: one needs data, another rejects its arguments."""
    library = torch.library.Library("metadata_test", "DEF")
    for name in ("refusing", "reading"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.impl("refusing", _refusing, "CompositeExplicitAutograd")
    library.impl("reading", lambda x: x[: int(x.sum())], "CompositeExplicitAutograd")
    return library, torch.ops.metadata_test


def _refusing(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the metadata of x don't fit")


def test_an_error_is_distinguished_from_want_of_data() -> None:
    library, ops = _library()
    with fake_world(2):
        args, kwargs = _specs((_t(4, 6),), {})
        with pytest.raises(RuntimeError, match="the metadata of x don't fit"):
            output_metadata(ops.refusing.default, args, kwargs)
        for op in (ops.reading.default, aten.nonzero.default, aten._local_scalar_dense.default):
            assert output_metadata(op, args, kwargs) is None
        counts, _ = _specs((_t(4, dtype=I64),), {})
        assert output_metadata(aten.repeat_interleave.Tensor, counts, {}) is None
    library._destroy()


def test_a_shortcut_leaves_errors_to_the_kernel() -> None:
    with fake_world(2):
        for op, args in (
            (aten.add.Tensor, (_t(4, 6), _t(4, 5))),
            (aten.where.self, (_t(4, 5, dtype=BOOL), _t(4, 6), _t(4, 6))),
            (aten.addmm.default, (_t(8), _t(4, 3), _t(4, 8))),
            (aten.cat.default, ([_t(4, 6), _t(4, 5)],)),
        ):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                output_metadata(op, *_specs(args, {}))


def test_a_meta_kernel_is_called_once_for_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(CACHE, "metadata", {})
    monkeypatch.setattr(
        module, "_by_kernel", lambda *call: asked.append(call) or (TensorMeta(*META),)
    )
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        for placement in (Replicate(), Shard(0), Shard(1)):
            spec = Spec(mesh, (placement,), TensorMeta(torch.Size((8, 4)), (4, 1), F32))
            assert output_metadata(aten.cumsum.default, (spec, 0), {}) == (META,)
    assert len(asked) == 1


META = TensorMeta(torch.Size((8, 4)), (4, 1), F32)


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0.5, 0.5j)])
def test_equal_numbers_of_other_types_have_metadata_of_their_own(values: tuple[Any, Any]) -> None:
    found = []
    with fake_world(2):
        for value in values:
            args, kwargs = _specs((_t(3, dtype=BOOL), value), {})
            found.append(output_metadata(aten.mul.Tensor, args, kwargs))
            assert found[-1] == module._by_kernel(aten.mul.Tensor, args, kwargs)
    assert found[0] != found[1]


@pytest.mark.parametrize("dtype", [F32, F64])
def test_metadata_follow_the_default_dtype(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with fake_world(2):
            args, kwargs = _specs((_t(3, dtype=I64), 2), {})
            (found,) = output_metadata(aten.div.Tensor, args, kwargs) or ()
    finally:
        torch.set_default_dtype(before)
    assert found.dtype is dtype


PROGRAM = """
import sys, torch
import torch.nn.functional as F
from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing.fake import fake_world
with fake_world(2):
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)]).requires_grad_()
    w = distribute_tensor(torch.ones(6, 6), mesh, [Replicate()]).requires_grad_()
    b = distribute_tensor(torch.ones(6), mesh, [Replicate()]).requires_grad_()
    y = F.layer_norm(F.gelu(F.linear(x, w, b)), (6,), w[0], b) + x * 2
    y = torch.where(y > 0, y, x).softmax(-1).log_softmax(-1).mean()
    y.backward()
print("torch._dynamo" in sys.modules)
"""


def test_the_first_operators_do_not_load_dynamo() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "False"


STRIDED = {
    "index_add": lambda x, y: x.index_add(0, torch.zeros(4, dtype=torch.long), y),
    "index_reduce": lambda x, y: x.index_reduce(0, torch.zeros(4, dtype=torch.long), y, "amax"),
    "copysign": torch.copysign,
    "div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "logaddexp": torch.logaddexp,
    "logical_and": torch.logical_and,
    "xlogy": torch.xlogy,
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x - 1, y - 1, reduction="none"),
    "binary_cross_entropy, weighted": lambda x, y: F.binary_cross_entropy(
        x - 1, x - 1, y, reduction="none"
    ),
    "binary_cross_entropy, reduced": lambda x, y: F.binary_cross_entropy(x - 1, y - 1),
    "gradient of binary_cross_entropy": lambda x, y: aten.binary_cross_entropy_backward(
        y, x - 1, x - 1, None, 0
    ),
    "log_sigmoid": lambda x, y: F.logsigmoid(x),
    "gradient of log_sigmoid": lambda x, y: aten.log_sigmoid_backward(
        y, x, aten.log_sigmoid_forward(x)[1]
    ),
    "gradient of dropout": lambda x, y: aten.native_dropout_backward(x, y > 1.5, 2.0),
    "nll_loss": lambda x, y: F.nll_loss(
        x[:, :, None], torch.zeros_like(x[:, 0]).long()[:, None], reduction="none"
    ),
    "nonzero_static": lambda x, y: torch.nonzero_static(x, size=8),
    "ldexp": torch.ldexp,
    "pow": torch.pow,
    "powers of 2": lambda x, y: torch.pow(2.0, x),
    "normal": torch.normal,
    "normal around 0": lambda x, y: torch.normal(0.0, x),
    "irfft": lambda x, y: torch.fft.irfft(x, dim=1),
    "irfft2": lambda x, y: torch.fft.irfft2(x, dim=(1, 0)),
    "irfftn": lambda x, y: torch.fft.irfftn(x),
    "hfft": lambda x, y: torch.fft.hfft(x, dim=0),
    "hfftn": lambda x, y: torch.fft.hfftn(x),
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("name", STRIDED)
def test_results_of_permuted_tensors_have_the_strides_of_the_kernel(name: str) -> None:
    numbers = torch.rand(5 * 4 * 3) + 1
    tensors = {
        "permuted": numbers.view(3, 4, 5).permute(1, 2, 0),
        "other": numbers.view(5, 4, 3).permute(1, 0, 2),
        "one row": numbers.view(5, 4, 3)[:, 0].expand(4, 5, 3),
    }
    with fake_world(2), implicit_replication():
        mesh = init_device_mesh("cpu", (2,))
        for x, y in itertools.product(tensors.values(), repeat=2):
            result = STRIDED[name](DTensor.from_local(x, mesh, [Replicate()]), y)
            assert result.stride() == result.to_local().stride() == STRIDED[name](x, y).stride()


def _unpooled(x: Any) -> Any:
    _, indices = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(x[:, :, :2, :2], indices, 2, output_size=(4, 5))


CHANNELS_LAST = {
    "max_pool3d": lambda x: F.max_pool3d(
        x[:, :, None].contiguous(memory_format=torch.channels_last_3d), (1, 2, 2)
    ),
    "max_unpool2d": _unpooled,
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 2, 1), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 1, 2, 1), mode="replicate"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_results_of_images_with_channels_last_have_the_strides_of_the_kernel(
    name: str, batch: int
) -> None:
    images = torch.rand(batch, 8, 4, 5)
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        for order in ((0, 1, 2, 3), (0, 2, 3, 1), (2, 0, 1, 3)):
            inverse = [order.index(dim) for dim in range(4)]
            whole = images.permute(order).contiguous().permute(inverse)
            for x in (whole, whole[:, :, :, 1:], whole[:, ::2], whole[:, :4]):
                given = DTensor.from_local(x, mesh, [Replicate()], shape=x.shape, stride=x.stride())
                result = CHANNELS_LAST[name](given)
                expected = CHANNELS_LAST[name](x).stride()
                assert result.stride() == result.to_local().stride() == expected, order


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_with_channels_last_have_the_strides_of_the_kernel(
    transposed: bool, dtype: torch.dtype, groups: int
) -> None:
    convolution = F.conv_transpose2d if transposed else F.conv2d
    formats = (torch.contiguous_format, torch.channels_last)
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        for x_format, weight_format in itertools.product(formats, formats):
            x = torch.rand(2, 4, 5, 6, dtype=dtype).to(memory_format=x_format)
            weight = torch.rand(4, 4 // groups, 3, 3, dtype=dtype).to(memory_format=weight_format)
            plain = [x.requires_grad_(), weight.requires_grad_()]
            given = [
                DTensor.from_local(each.detach(), mesh, [Replicate()]).requires_grad_()
                for each in plain
            ]
            of_plain, of_given = (
                convolution(*pair, padding=1, groups=groups) for pair in (plain, given)
            )
            assert of_given.stride() == of_given.to_local().stride() == of_plain.stride()
            for result in (of_plain, of_given):
                result.sum().backward()
            strides = [[each.grad.stride() for each in pair] for pair in (plain, given)]
            assert strides[0] == strides[1]


def test_numbers_drawn_for_permuted_tensors_are_those_of_one_device() -> None:
    mean = torch.arange(60.0).view(3, 4, 5).permute(1, 2, 0)
    torch.manual_seed(3)
    expected = torch.normal(mean, mean)
    with fake_world(1):
        mesh = init_device_mesh("cpu", (1,))
        given = DTensor.from_local(mean, mesh, [Replicate()])
        torch.manual_seed(3)
        assert torch.equal(torch.normal(given, given).to_local(), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_the_moments_of_batch_norms_are_those_that_kernels_keep(
    name: str, parameters: torch.dtype, training: bool
) -> None:
    op = getattr(torch.ops.aten, name).default
    x = torch.ones(3, 2, 4, dtype=torch.bfloat16)
    each = [torch.ones(2, dtype=parameters) for _ in range(4)]
    kept = op(x, *each, training, 0.1, 1e-5)
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        given = (x, *each, training, 0.1, 1e-5)
        args, _ = converted(torch.Tensor, lambda tensor: spec_on(mesh, tensor), given, {})
        reported = output_metadata(op, args, {})
    assert reported is not None
    assert [(meta.shape, meta.dtype) for meta in reported] == [(t.shape, t.dtype) for t in kept]


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_the_moments_of_layer_norm_are_those_that_kernels_keep(parameters: torch.dtype) -> None:
    op = torch.ops.aten.native_layer_norm.default
    given = (torch.ones(3, 2, dtype=torch.bfloat16), [2], *[torch.ones(2, dtype=parameters)] * 2)
    kept = op(*given, 1e-5)
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        args, _ = converted(torch.Tensor, lambda tensor: spec_on(mesh, tensor), given, {})
        reported = output_metadata(op, (*args, 1e-5), {})
    assert reported is not None
    assert [(meta.shape, meta.dtype) for meta in reported] == [(t.shape, t.dtype) for t in kept]
