"""Uses of autograd by programs, on DTensors in every layout and on full tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from dtensor_core import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    full,
    init_device_mesh,
    missing_rule,
)
from dtensor_core.errors import TransformError
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.pool import run_processes
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.works_with.layouts import (
    LAYOUTS,
    assert_close,
    assert_same_run,
    model,
    numbers,
    parallel,
)

INPUT = numbers(3, 6)


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def _double_backward(w: Any, v: Any) -> Any:
    grads = torch.autograd.grad(((w @ v.T).relu() ** 2).sum(), (w, v), create_graph=True)
    torch.stack([(each**2).sum() for each in grads]).sum().backward()
    return w.grad, v.grad


def _retained_graph(w: Any, v: Any) -> Any:
    out = (w.sin() * v).sum()
    out.backward(retain_graph=True)
    out.backward()
    return w.grad, v.grad


def _accumulated(w: Any, v: Any) -> Any:
    for factor in range(3):
        (w * v * factor).sum().backward()
    return w.grad, v.grad


def _unused(w: Any, v: Any) -> Any:
    given = torch.autograd.grad((w * 2).sum(), (w, v), allow_unused=True)
    assert given[1] is None
    return given[0], torch.autograd.grad((w * 2).sum(), (w, v), materialize_grads=True)


def _grad_outputs(w: Any, v: Any) -> Any:
    return torch.autograd.grad(w * 3, w, grad_outputs=v.detach())


def _hooks(w: Any, v: Any) -> Any:
    seen: list[Any] = []
    w.register_hook(lambda grad: grad * 2)
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    torch.autograd.graph.register_multi_grad_hook((w, v), lambda grads: seen.extend(grads))
    out = w * v
    out.retain_grad()
    out.register_hook(lambda grad: grad + 1)
    out.sum().backward()
    return w.grad, out.grad, seen


def _saved_tensors_hooks(w: Any, v: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2):
        out = (w.exp() * v).sum()
    out.backward()
    return w.grad, v.grad


def _saved_on_cpu(w: Any, v: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        out = (w.exp() * v).sum()
    out.backward()
    return w.grad, v.grad


def _custom_function(w: Any, v: Any) -> Any:
    (_Square.apply(w) * v).sum().backward()  # pyright: ignore
    return w.grad, v.grad


def _anomaly_detected(w: Any, v: Any) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        (w.exp() * v).sum().backward()
    return w.grad, v.grad


def _checkpointed(w: Any, v: Any) -> Any:
    for use_reentrant in (False, True):
        out = checkpoint(lambda x: (x @ v.T).relu(), w, use_reentrant=use_reentrant)
        out.sum().backward()
    return w.grad, v.grad


def _jvp(w: Any, v: Any) -> Any:
    return torch.func.jvp(lambda x: x.sin() @ x.T.cos(), (w,), (v,))


def _vjp(w: Any, v: Any) -> Any:
    pulled: Any = torch.func.vjp(torch.sin, w)
    return pulled[0], pulled[1](v)


def _grad_of_grad(w: Any, v: Any) -> Any:
    def once(x: Any) -> Any:
        return torch.func.grad(lambda y: (y**3 * v).sum())(x).sum()

    return torch.func.grad(once)(w), torch.func.grad_and_value(once)(w)


def _vmap(w: Any, v: Any) -> Any:
    per_row = torch.func.vmap(lambda x, y: x * 2 + y.sum())(w, v)
    return per_row, torch.func.vmap(torch.func.grad(lambda x: (x**3).sum()))(w)


def _jacobians(w: Any, v: Any) -> Any:
    return (
        torch.func.jacrev(lambda x: x.sin().sum(0))(w),
        torch.func.jacfwd(lambda x: x.sin().sum(0))(w),
        torch.autograd.functional.jacobian(lambda x: x.sin().sum(0), w),
    )


def _hessian(w: Any, v: Any) -> Any:
    return torch.func.hessian(lambda x: (x**3).sum())(w)


def _dual_numbers(w: Any, v: Any) -> Any:
    with forward_ad.dual_level():
        out = torch.tanh(forward_ad.make_dual(w, v)) @ forward_ad.make_dual(v, w).T
        return forward_ad.unpack_dual(out).tangent


PROGRAMS: tuple[Callable[[Any, Any], Any], ...] = (
    _double_backward,
    _retained_graph,
    _accumulated,
    _unused,
    _grad_outputs,
    _hooks,
    _saved_tensors_hooks,
    _saved_on_cpu,
    _custom_function,
    _checkpointed,
    _vjp,
    _grad_of_grad,
    _vmap,
)
# These set state of the entire process, so ranks must not be threads.
IN_PROCESSES = (_jvp, _jacobians, _hessian, _dual_numbers, _anomaly_detected)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gives_the_results_of_full_tensors(program: Callable[..., Any]) -> None:
    assert_same_run(program, numbers(5, 4), numbers(5, 4, seed=1))


CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "redistributed": lambda c: c.redistribute(placements=[Shard(1)]),
    "gathered": lambda c: DTensor.from_local(c.full_tensor(), c.device_mesh, [Replicate()]),
    "made": lambda c: c * full((5, 4), 2.0, device_mesh=c.device_mesh, placements=[Shard(0)]),
    "distributed": lambda c: c * distribute_tensor(numbers(5, 4), c.device_mesh, [Shard(1)]),
}


@pytest.mark.parametrize("made", CONSTANTS)
def test_what_is_moved_or_made_inside_of_a_transform_is_a_constant(made: str) -> None:
    given = numbers(5, 4, seed=1)
    factor = 2.0 if made == "made" else 1.0

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        values = numbers(5, 4)
        x, c = (distribute_tensor(each, mesh, [Shard(0)]) for each in (values, given))
        if made == "distributed":  # new tensors in a transform are transformed
            with pytest.raises(TransformError, match="create and redistribute them outside"):
                torch.func.grad(lambda y: (y * CONSTANTS[made](c)).sum())(x)
            return
        gradient = torch.func.grad(lambda y: (y * CONSTANTS[made](c)).sum())(x)
        assert_close(gradient, given * factor)

    body()


def test_parallel_styles_refuse_what_a_transform_has_wrapped_on_every_rank() -> None:
    @on_threads(2)
    def body() -> None:
        mine = parallel(kept_mesh((2,)))
        with pytest.raises(TransformError, match="from_local of a tensor that torch"):
            torch.func.grad(lambda x: mine(x).sum())(INPUT)

    body()


def _each_in_processes() -> None:
    warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
    full_tensors = numbers(5, 4), numbers(5, 4, seed=1)
    mesh = init_device_mesh("cpu", (2,))
    for program in IN_PROCESSES:
        wanted = program(*(each.clone().requires_grad_() for each in full_tensors))
        for layout in LAYOUTS:
            mine = [
                distribute_tensor(each, mesh, [layout]).requires_grad_() for each in full_tensors
            ]
            assert_close(program(*mine), wanted)


def test_programs_that_switch_something_on_for_the_process() -> None:
    run_processes(_each_in_processes, 2)


FORWARD: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: x.mul(2) + 1,
    "a quotient": lambda x: x.div(2) - x.sub(1),
    "a product": lambda x: x.sin() @ x.T,
    "a power": lambda x: (x**2).sum(0),
    "softmax": lambda x: x.softmax(-1).mean(),
    "a norm": lambda x: F.layer_norm(x, (4,)),
    "a loss": lambda x: F.mse_loss(x, x * 2),
    "a join": lambda x: torch.cat([x, x], 1) * 2,
    "a choice": lambda x: torch.where(x > 0, x, x * 2).clamp(0, 1),
}


@pytest.mark.parametrize("function", FORWARD)
def test_forward_derivatives_need_no_operator_without_a_rule(function: str) -> None:
    with fake_world(2), missing_rule("error"):
        mesh = init_device_mesh("cpu", (2,))
        for layout in LAYOUTS:
            x, t = (distribute_tensor(numbers(4, 4, seed=n), mesh, [layout]) for n in range(2))
            torch.func.jvp(FORWARD[function], (x,), (t,))


def _crossings_of_dual_numbers() -> None:
    x, t = numbers(5, 4), numbers(5, 4, seed=1)
    mesh = init_device_mesh("cpu", (2,))

    def reassembled(local: torch.Tensor, like: torch.Tensor, placements: Any) -> torch.Tensor:
        given = {"shape": like.shape, "stride": like.stride()}
        return DTensor.from_local(local, mesh, placements, **given).full_tensor()

    for layout in LAYOUTS:
        mine, direction = (distribute_tensor(each, mesh, [layout]) for each in (x, t))
        with forward_ad.dual_level():
            dual: Any = forward_ad.make_dual(mine, direction)
            for target in LAYOUTS:
                moved = forward_ad.unpack_dual(dual.redistribute(placements=[target]))
                assert_close(moved, (x, t))
            summed = dual.sum(0)
            pending = forward_ad.unpack_dual(summed.to_local())
            assert_close(reassembled(pending.tangent, t[0], summed.placements), t.sum(0))
            assert_close(forward_ad.unpack_dual(summed.full_tensor()).tangent, t.sum(0))
            local = forward_ad.unpack_dual(dual.to_local())
            assert_close(reassembled(local.tangent, t, [layout]), t)
            made = DTensor.from_local(
                dual.to_local(), mesh, [layout], shape=x.shape, stride=x.stride()
            )
            assert_close(forward_ad.unpack_dual(made * made).tangent, 2 * x * t)


# Each writes to a part of a tensor that begins after its first element.
PARTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda y: y[1:],
    "columns": lambda y: y[:, 1:],
    "narrow": lambda y: y.narrow(0, 1, 2),
    "one row": lambda y: y[1],
    "one column": lambda y: y.select(1, 2),
    "transposed": lambda y: y.t()[1:],
    "every other row": lambda y: y[1::2],
    "a part of a part": lambda y: y[1:][1:, 2:],
    "flattened": lambda y: y.view(-1)[3:],
    "a diagonal": lambda y: y.diagonal(1),
}


def _gradients_with_a_written_part(part: Callable[[Any], Any], x: Any) -> list[Any]:
    def function(x: Any) -> Any:
        y = x * 1
        part(y).mul_(part(x) + 2)
        return (y * x).sum()

    def second(x: Any) -> Any:
        return torch.func.grad(function)(x).pow(2).sum()

    leaf = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
    value, pull = torch.func.vjp(function, x)
    return [
        torch.func.grad(function)(x),
        torch.func.grad(second)(x),
        *pull(torch.ones_like(value)),
        first.detach(),
        *torch.autograd.grad(first.pow(2).sum(), leaf),
        torch.func.functionalize(function)(x),
    ]


@pytest.mark.parametrize("part", PARTS)
@on_threads(2)
def test_a_part_that_is_written_has_the_derivatives_of_one_device(part: str) -> None:
    full_tensor = numbers(5, 4)
    wanted = _gradients_with_a_written_part(PARTS[part], full_tensor)
    for layout in LAYOUTS:
        x = distribute_tensor(full_tensor, kept_mesh((2,)), [layout])
        assert_close(_gradients_with_a_written_part(PARTS[part], x), wanted)


def _tangents_of_random_numbers() -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(numbers(4, 3).abs(), mesh, [Shard(0)])
    for draw in (lambda y: torch.normal(0.5, y), lambda y: torch.normal(y, 0.5)):
        _, tangent = torch.func.jvp(draw, (x,), (x,))
        assert_close(tangent, torch.zeros(4, 3).double())


def test_random_numbers_have_tangents_of_zeros() -> None:
    run_processes(_tangents_of_random_numbers, 2)


def test_a_function_of_dtensors_is_not_linearized() -> None:
    with fake_world(1):
        x = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(RuntimeError, match=r"torch\.func\.jvp, which does not trace"):
            torch.func.linearize(lambda y: y.sin() @ y.T, x)


def test_the_tangents_of_dual_numbers_cross_with_them() -> None:
    run_processes(_crossings_of_dual_numbers, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_anomaly_mode_finds_what_is_no_number(layout: Any) -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.zeros(4, 4), mesh, [layout]).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                torch.autograd.detect_anomaly(),
                pytest.raises(RuntimeError, match="returned nan values"),
            ):
                torch.sqrt(x).mul(0).sum().backward()


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "sequential"])
def test_a_recomputed_model_has_the_same_gradients(how: str) -> None:
    plain = model()
    (plain(INPUT) ** 2).sum().backward()

    @on_threads(2)
    def body() -> None:
        mine = parallel(kept_mesh((2,)))
        given = INPUT.clone().requires_grad_()
        out: Any = (
            checkpoint_sequential(mine, 2, given, use_reentrant=False)
            if how == "sequential"
            else checkpoint(mine, given, use_reentrant=how == "reentrant")
        )
        (out**2).sum().backward()
        assert_close([p.grad for p in mine.parameters()], [p.grad for p in plain.parameters()])

    body()


def test_recomputed_dropout_drops_the_same() -> None:
    @on_threads(2)
    def body() -> None:
        x = distribute_tensor(torch.ones(8, 6), kept_mesh((2,)), [Shard(0)]).requires_grad_()
        out: Any = checkpoint(lambda y: F.dropout(y, 0.5), x, use_reentrant=False)
        out.sum().backward()
        assert_close(x.grad, out.full_tensor())

    body()


def test_module_hooks_see_what_they_see_of_a_plain_module() -> None:
    def run(each: Any) -> Any:
        seen: list[Any] = []
        each.register_forward_pre_hook(lambda m, given: (given[0] + 1,))
        each.register_forward_hook(lambda m, given, out: out * 2)
        each.register_full_backward_hook(lambda m, inputs, outputs: seen.append(outputs[0]))
        each(INPUT.clone().requires_grad_()).sum().backward()
        return seen, [parameter.grad for parameter in each.parameters()]

    wanted = run(model())

    @on_threads(2)
    def body() -> None:
        assert_close(run(parallel(kept_mesh((2,)))), wanted)

    body()


def test_inference_mode_runs_models_and_writes_in_place() -> None:
    wanted = model()(INPUT)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        outside = parallel(mesh)
        with torch.inference_mode():
            assert_close(outside(INPUT), wanted)
            assert_close(parallel(mesh)(INPUT), wanted)
            x = distribute_tensor(numbers(4, 6), mesh, [Shard(0)])
            x.add_(1)
            assert x.is_inference()
            assert_close((x @ x.T).softmax(-1), ((y := numbers(4, 6) + 1) @ y.T).softmax(-1))

    body()


def test_leaves_and_saved_tensors_are_guarded_from_writing() -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4), mesh, [Shard(0)]).requires_grad_()
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            x.add_(1)
        y = x.exp()
        z = y.exp()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_a_default_device_changes_nothing() -> None:
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,))
        torch.set_default_device("meta")
        try:
            x = DTensor.from_local(torch.ones(2, 4, device="cpu"), mesh, [Shard(0)])
            doubled: Any = x * 2
            out = doubled.redistribute(placements=[Shard(1)])
            assert out.softmax(-1).to_local().device.type == "cpu"
        finally:
            torch.set_default_device(None)
