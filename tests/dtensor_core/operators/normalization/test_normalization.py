"""Norms sharded along any dim: equal to a single device, and the statistics that ranks share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Partial, Placement, Replicate, Shard, init_device_mesh
from dtensor_core.debug import explain
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives, Messages
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

REPLICATED, PARTIAL = Replicate(), Partial()
PLACEMENTS = [Shard(0), Shard(1), Shard(2), Shard(3), REPLICATED, PARTIAL]
GATHER = {"all_gather_into_tensor": 1}


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _layer(x: Any, weight: Any, bias: Any) -> Any:
    return F.layer_norm(x, weight.shape, weight, bias)


def _rms(x: Any, weight: Any, bias: Any) -> Any:
    return F.rms_norm(x, weight.shape, weight) + bias


def _group(x: Any, weight: Any, bias: Any) -> Any:
    return F.group_norm(x, 4, weight, bias)


def _batch(x: Any, weight: Any, bias: Any) -> Any:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def _instance(x: Any, weight: Any, bias: Any) -> Any:
    return F.instance_norm(x, weight=weight, bias=bias)


def _known(x: Any, weight: Any, bias: Any) -> Any:
    return F.batch_norm(x, bias.detach(), weight.detach().abs(), weight, bias)


# Each with the shape of its input, few of whose dims 4 ranks divide, and of its weight.
NORMS = {
    "layer": (_layer, (3, 5, 6, 4), (6, 4)),
    "rms": (_rms, (3, 5, 6, 4), (6, 4)),
    "group": (_group, (3, 8, 5, 4), (8,)),
    "batch": (_batch, (5, 6, 3, 4), (6,)),
    "instance": (_instance, (5, 6, 3, 4), (6,)),
    "batch with known moments": (_known, (5, 6, 3, 4), (6,)),
}


def _inputs(shape: tuple[int, ...], of_weight: tuple[int, ...]) -> list[torch.Tensor]:
    made = [_t(*shape) * 3 + 1, _t(*of_weight) + 2, _t(*of_weight)]
    return [each.requires_grad_() for each in made]


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_and_its_gradients_are_those_of_one_device(name: str) -> None:
    norm, *shapes = NORMS[name]
    tensors = _inputs(*shapes)
    for sharding in PLACEMENTS:
        assert_agrees(norm, tensors, [[sharding], [REPLICATED], [REPLICATED]])
    assert_agrees(norm, tensors, [[Shard(1)], [Shard(0)], [REPLICATED]])
    for shardings in ((Shard(0), Shard(1)), (Shard(2), Shard(2)), (Shard(1), Shard(3))):
        assert_agrees(
            norm, tensors, [list(shardings), [REPLICATED] * 2, [REPLICATED] * 2], mesh_shape=(2, 2)
        )


def _counted(norm: Any, shapes: Any, sharding: Placement, weight: Placement) -> Any:
    """Count collectives forward and backward; return layouts of the result and two gradients."""
    found: list[Any] = []

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x, *others = _inputs(*shapes)
        tensors = [laid_out(x, mesh, [sharding]), *(laid_out(t, mesh, [weight]) for t in others)]
        with Collectives() as forward:
            out = norm(*tensors)
        grad = DTensor(out._local_tensor.detach().clone(), out._spec)
        with Collectives() as backward:
            # Not into `.grad`: there gradients have the layout of their tensors.
            gradients: Any = torch.autograd.grad(out, tensors[:2], grad)
        placements = [each.placements[0] for each in (out, *gradients)]
        found.append((dict(forward.counts), dict(backward.counts), *placements))

    body()
    return found[0]


SENDING = [
    # Rows, groups and channels within a rank are normalized locally. Weights that apply to several
    # of them have partial gradients.
    ("layer", Shard(0), REPLICATED, ({}, {}, Shard(0), Shard(0), PARTIAL)),
    ("group", Shard(0), REPLICATED, ({}, {}, Shard(0), Shard(0), PARTIAL)),
    ("group", Shard(1), Shard(0), ({}, {}, Shard(1), Shard(1), Shard(0))),
    ("batch", Shard(1), Shard(0), ({}, {}, Shard(1), Shard(1), Shard(0))),
    # Ranks share the moments of sharded dimensions, and two sums in backward.
    ("layer", Shard(2), Shard(0), (GATHER, GATHER, Shard(2), Shard(2), Shard(0))),
    ("group", Shard(3), REPLICATED, (GATHER, GATHER, Shard(3), Shard(3), PARTIAL)),
    # The gradient of a batch norm's weight is one of these sums, which all ranks know.
    ("batch", Shard(0), REPLICATED, (GATHER, GATHER, Shard(0), Shard(0), REPLICATED)),
    ("batch", Shard(2), REPLICATED, (GATHER, GATHER, Shard(2), Shard(2), REPLICATED)),
    # Known moments need no communication.
    ("batch with known moments", Shard(0), REPLICATED, ({}, {}, Shard(0), Shard(0), PARTIAL)),
    # A sample's channels are its own; the weights apply to all samples.
    ("instance", Shard(0), REPLICATED, ({}, {}, Shard(0), Shard(0), PARTIAL)),
]


@pytest.mark.parametrize(("name", "sharding", "weight", "expected"), SENDING)
def test_ranks_share_moments_of_what_is_sharded(
    name: str, sharding: Any, weight: Any, expected: Any
) -> None:
    norm, (_, *rest), of_weight = NORMS[name]
    assert _counted(norm, ((8, *rest), of_weight), sharding, weight) == expected


@pytest.mark.parametrize(
    ("channels", "groups", "met"),
    [
        (8, 2, 1),  # Two channels a rank, four a group.
        (8, 1, 1),
        (10, 2, 2),  # Ranks have 3, 3, 3 and 1 channels: rank 1 has 3 to 5, of both groups.
        (18, 3, 2),  # 5, 5, 5 and 3: rank 1 has 5 to 9, of the first two groups of six.
        (6, 3, 1),  # 2, 2, 2 and none: three ranks have one full group each.
    ],
)
def test_ranks_that_share_groups_share_two_numbers_of_each_that_one_may_meet(
    channels: int, groups: int, met: int
) -> None:
    samples = 8
    with fake_world(4, rank=1):
        mesh = init_device_mesh("cpu", (4,))
        x, weight, bias = _inputs((samples, channels, 32, 32), (channels,))
        mine = [laid_out(x, mesh, [Shard(1)]), laid_out(weight, mesh, [REPLICATED])]
        mine.append(laid_out(bias, mesh, [Shard(0)]))
        with Messages() as sent:
            y = F.group_norm(mine[0], groups, *mine[1:])
        assert sent.all == [("all_gather", 2 * samples * met)]
        assert y.placements == (Shard(1),)
        grad = torch.ones_like(y).redistribute(placements=[Shard(1)])
        with Messages() as sent:
            back = torch.autograd.grad(y, mine, grad)
        assert sent.all == [("all_gather", 2 * samples * met)]
        assert [each.placements for each in back] == [(Shard(1),), (Shard(0),), (Shard(0),)]


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize(("channels", "groups"), [(8, 1), (10, 2), (18, 3), (6, 3), (2, 1)])
def test_a_group_norm_agrees_where_groups_are_sharded(channels: int, groups: int) -> None:
    def norm(*tensors: Any) -> Any:
        return F.group_norm(tensors[0], groups, *tensors[1:])

    for places in ((5, 4), ()):
        tensors = _inputs((3, channels, *places), (channels,))
        assert_agrees(norm, tensors, [[Shard(1)], [REPLICATED], [Shard(0)]])
        for shardings in ((Shard(1), Shard(1)), (Shard(0), Shard(1)), (Shard(1), Shard(2)))[
            : 2 + len(places)
        ]:
            for shape in ((2, 2), (3, 2)):
                assert_agrees(norm, tensors[:1], [shardings], mesh_shape=shape)
                assert_agrees(
                    norm, tensors, [shardings, [REPLICATED] * 2, [REPLICATED] * 2], mesh_shape=shape
                )


def test_where_no_kernel_is_fused_squares_of_rows_are_summed_up_and_one_number_backward() -> None:
    def norm(x: Any, weight: Any) -> Any:
        return F.rms_norm(x, (10,), weight)

    tensors = _t(4, 6, 10).requires_grad_(), _t(10).requires_grad_()
    with fake_world(4, rank=1):
        mesh = init_device_mesh("cpu", (4,))
        mine = [laid_out(tensors[0], mesh, [Shard(2)]), laid_out(tensors[1], mesh, [REPLICATED])]
        with Messages() as sent:
            y = norm(*mine)
        # One number of each of 4 x 6 rows; a row's gradient needs the sum of grad * x.
        assert sent.all == [("all_reduce", 24)]
        assert y.placements == (Shard(2),)
        grad = torch.ones_like(y).redistribute(placements=[Shard(2)])
        with Messages() as sent:
            back = torch.autograd.grad(y, mine, grad)
        assert sent.all == [("all_reduce", 24)]
        assert [each.placements for each in back] == [(Shard(2),), (Shard(0),)]
    assert_agrees(norm, tensors, [[Shard(2)], [REPLICATED]])
    assert_agrees(lambda x: norm(x.bfloat16(), None), tensors[:1], [[Shard(2)]])
    both = [[Shard(0), Shard(2)], [REPLICATED, REPLICATED]]
    assert_agrees(norm, tensors, both, mesh_shape=(2, 2))


@pytest.mark.parametrize(
    ("name", "sharding", "numbers"),
    [("layer", Shard(3), 3 * 5), ("group", Shard(2), 3 * 4), ("batch", Shard(0), 6)],
)
def test_two_numbers_of_each_row_group_or_channel_are_shared(
    name: str, sharding: Any, numbers: int
) -> None:
    norm, *shapes = NORMS[name]

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x, *weights = (each.detach().float() for each in _inputs(*shapes))
        tensors = [
            laid_out(x, mesh, [sharding]),
            *(laid_out(t, mesh, [REPLICATED]) for t in weights),
        ]
        (send,) = explain(norm, *tensors).communicating
        # Every rank receives a mean and a variance, of four bytes each, of four ranks.
        assert send.payload_bytes == 4 * 2 * 4 * numbers

    body()


@pytest.mark.parametrize("momentum", [0.1, 0.0])
@pytest.mark.parametrize("sharding", PLACEMENTS[:4], ids=str)
def test_running_moments_are_those_of_one_device_on_every_rank(
    sharding: Any, momentum: float
) -> None:
    x = _t(5, 6, 3, 4) * 2 + 3
    mean, variance = torch.zeros(6).double(), torch.ones(6).double()
    F.batch_norm(x, mean, variance, training=True, momentum=momentum)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        running = torch.zeros(6).double(), torch.ones(6).double()
        found = [laid_out(each, mesh, [REPLICATED]) for each in running]
        F.batch_norm(laid_out(x, mesh, [sharding]), *found, training=True, momentum=momentum)
        for got, wanted in zip(found, (mean, variance), strict=True):
            assert got.placements == (REPLICATED,)
            torch.testing.assert_close(got.to_local(), wanted)

    body()


@pytest.mark.parametrize("name", ["cudnn_batch_norm", "miopen_batch_norm"])
def test_a_library_s_batch_norm_is_that_of_all_devices(name: str) -> None:
    x, weight, bias = _inputs((5, 6, 3, 4), (6,))
    norm = getattr(torch.ops.aten, name).default
    alone = [each.detach().clone().requires_grad_() for each in (x, weight, bias)]
    moments = torch.zeros(6).double(), torch.ones(6).double()
    wanted = F.batch_norm(alone[0], *moments, *alone[1:], training=True)
    wanted.sin().sum().backward()

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine = [laid_out(x, mesh, [Shard(0)])]
        mine += [laid_out(each, mesh, [REPLICATED]) for each in (weight, bias)]
        running = [torch.zeros(6).double(), torch.ones(6).double()]
        running = [laid_out(each, mesh, [REPLICATED]) for each in running]
        found = norm(*mine, *running, True, 0.1, 1e-5)[0]
        found.sin().sum().backward()
        torch.testing.assert_close(found.full_tensor(), wanted)
        for got, tensor in zip(mine, alone, strict=True):
            grad: Any = got.grad
            torch.testing.assert_close(grad.full_tensor(), tensor.grad)
        for got, expected in zip(running, moments, strict=True):
            torch.testing.assert_close(got.to_local(), expected)

    body()


def test_moments_of_numbers_far_from_zero_keep_their_digits() -> None:
    x = (_t(8, 6).float() + 4096).requires_grad_()
    wanted = F.layer_norm(x.detach().double(), (6,))

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        found: Any = F.layer_norm(laid_out(x, mesh, [Shard(1)]), (6,))
        torch.testing.assert_close(found.full_tensor().double(), wanted, atol=2e-3, rtol=0)

    body()


def test_a_module_trains_as_on_one_device() -> None:
    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).double()
    x = _t(6, 3, 2, 2)
    alone(x).square().sum().backward()

    @on_threads(4)
    def body() -> None:
        from dtensor_core import distribute_module

        mesh = kept_mesh((4,))
        torch.manual_seed(0)
        mine = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).double()
        distribute_module(mine, mesh)
        mine(laid_out(x, mesh, [Shard(0)])).square().sum().backward()
        for name, wanted in alone.named_parameters():
            found: Any = mine.get_parameter(name).grad
            assert wanted.grad is not None
            torch.testing.assert_close(found.full_tensor(), wanted.grad, atol=1e-9, rtol=1e-6)
        for name, wanted in alone.named_buffers():
            found = mine.get_buffer(name)
            torch.testing.assert_close(found.full_tensor(), wanted)

    body()


def test_a_group_norm_takes_local_tensors_in_any_order_of_memory() -> None:
    full = _t(6, 4, 4)
    expected = F.group_norm(full, 2)

    @on_threads(2)
    def body() -> None:
        local = full.transpose(0, 1).contiguous().transpose(0, 1)
        x: Any = DTensor.from_local(
            local, kept_mesh((2,)), [REPLICATED], shape=full.shape, stride=full.stride()
        ).requires_grad_()
        made: Any = F.group_norm(x, 2)
        made.square().sum().backward()
        torch.testing.assert_close(made.full_tensor(), expected)
        plain = full.clone().requires_grad_()
        F.group_norm(plain, 2).square().sum().backward()
        torch.testing.assert_close(x.grad.full_tensor(), plain.grad)

    body()
