"""Thread groups equal gloo for every collective, or values by hand where gloo lacks it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from dtensor_core.testing import RankFailure, run_processes, run_threads
from dtensor_core.testing.compare import assert_equal
from dtensor_core.testing.moves import MOVES
from tests.dtensor_core.testing.collectives import CALLS, call_all


@pytest.fixture(scope="module")
def on_gloo():
    return run_processes(call_all, 3)


@pytest.fixture(scope="module")
def on_the_threads():
    return run_threads(call_all, 3)


@pytest.mark.parametrize("name", CALLS)
def test_threads_give_what_gloo_gives(name, on_gloo, on_the_threads):
    for gloo, threads in zip(on_gloo, on_the_threads, strict=True):
        assert_equal(threads[name], gloo[name])


def test_the_comparison_would_notice_a_difference(on_gloo, on_the_threads):
    with pytest.raises(AssertionError):
        assert_equal(on_the_threads[0]["broadcast"] + 1, on_gloo[0]["broadcast"])


def test_the_average_of_floats_and_of_integers():
    def body():
        floats, integers = torch.tensor([dist.get_rank() + 0.5]), torch.tensor([dist.get_rank()])
        dist.all_reduce(floats, op=dist.ReduceOp.AVG)
        dist.all_reduce(integers, op=dist.ReduceOp.AVG)
        return floats.item(), integers.item()

    assert run_threads(body, 4) == [(2.0, 1)] * 4


def test_lists_of_tensors_all_to_all():
    def body():
        rank = dist.get_rank()
        outputs = [torch.zeros(1) for _ in range(3)]
        dist.all_to_all(outputs, [torch.tensor([10.0 * rank + to]) for to in range(3)])
        return [output.item() for output in outputs]

    assert run_threads(body, 3) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]


def test_an_output_may_be_a_part_of_the_input():
    def body():
        rank = dist.get_rank()
        full = torch.zeros(3)
        full[rank] = rank + 1.0
        dist.all_gather_single(full, full[rank : rank + 1])
        scattered = torch.arange(3.0) + rank
        dist.reduce_scatter_single(scattered[rank : rank + 1], scattered)
        return full.tolist(), scattered[rank].item()

    assert run_threads(body, 3) == [([1, 2, 3], 3), ([1, 2, 3], 6), ([1, 2, 3], 9)]


def test_moving_data_leaves_no_trace_in_autograd():
    def body():
        parameter = torch.ones(2, requires_grad=True)
        value = parameter * 2
        version = value._version
        dist.all_reduce(value.detach())
        assert value._version == version
        value.sum().backward()
        return value.tolist(), parameter.grad.tolist()

    assert run_threads(body, 2) == [([4, 4], [2, 2])] * 2


def test_collectives_work_in_inference_mode():
    def body():
        with torch.inference_mode():
            value = torch.ones(2)
            dist.all_reduce(value)
        return value.tolist()

    assert run_threads(body, 2) == [[2, 2]] * 2


def test_a_send_that_does_not_fit_names_both_sides():
    def body():
        if dist.get_rank():
            dist.recv(torch.zeros(3), 0)
        else:
            dist.send(torch.zeros(2), 1)

    with pytest.raises(RankFailure) as failure:
        run_threads(body, 2)
    assert "torch.float32[2] is sent where torch.float32[3] is expected" in str(failure.value)


def test_a_send_waits_for_its_receive():
    def body():
        dist.send(torch.zeros(1), 1 - dist.get_rank())
        dist.recv(torch.zeros(1), 1 - dist.get_rank())

    with pytest.raises(RankFailure) as failure:
        run_threads(body, 2)
    assert "send from rank 0 to rank 1 with tag 0 on group '0'" in str(failure.value)


def test_fake_tensors_are_exchanged_without_data():
    def body():
        with FakeTensorMode():
            tensor, gathered = torch.ones(4, 4), [torch.empty(4, 4), torch.empty(4, 4)]
            dist.all_reduce(tensor)
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
            dist.all_gather(gathered, tensor)
            dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
            assert tensor.shape == (4, 4)

    run_threads(body, 2)


def test_an_uneven_split_is_refused():
    def body():
        dist.all_to_all_single(torch.zeros(3), torch.zeros(3))

    with pytest.raises(RankFailure, match="3"):
        run_threads(body, 2)


def test_ddp_averages_gradients():
    def body():
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        replica = torch.nn.parallel.DistributedDataParallel(model)
        replica(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        return model.weight.grad.tolist()

    assert run_threads(body, 3) == [[[1, 1]]] * 3


def test_every_move_is_tried_here():
    tried = {*CALLS, "all_reduce", "all_to_all", "barrier"}
    assert set(MOVES) - tried == {"all_gather_coalesced"}  # only C++ calls that one
