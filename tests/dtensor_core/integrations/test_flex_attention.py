"""`flex_attention` of DTensors: outputs and gradients match a single device, in every layout."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)

import commtrace
from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.errors import MixedTensorError, PlacementError
from dtensor_core.testing import run_processes, run_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def gradients_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kernels for CPUs have no backward pass, but its formulas, which run here, have."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)


B, H, L, E = 4, 4, 64, 8
SLOPES = torch.arange(1.0, H + 1, dtype=torch.float64) / 8
DOCUMENTS = torch.arange(B)[:, None] * 8 + torch.arange(L)[None] // 24


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (DOCUMENTS[b, q] == DOCUMENTS[b, k]) | (h == 1)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def slopes(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q) + 0.125 * b


def inputs(heads: int = H, batch: int = B, kv_heads: int | None = None) -> list[torch.Tensor]:
    torch.manual_seed(7)
    sizes = (heads, kv_heads or heads, kv_heads or heads)
    return [torch.randn(batch, n, L, E, dtype=torch.float64) for n in sizes]


def mask(kind: str, block: int = 16) -> Any:
    if kind == "none":
        return None
    function, batch, heads = {"causal": (causal, None, None), "documents": (documents, B, H)}[kind]
    return create_block_mask(function, batch, heads, L, L, device="cpu", BLOCK_SIZE=block)


def check(
    mesh_shape: tuple[int, ...],
    layouts: Any,
    made_of: list[torch.Tensor],
    expected: Any = None,
    **how: Any,
) -> list[Any]:
    """Compare output and gradients; return the placements of the output by rank."""
    plain = [each.clone().requires_grad_() for each in made_of]
    wanted = flex_attention(*plain, **how)
    wanted.backward(weight := torch.randn_like(wanted))

    def body() -> Any:
        mesh = init_device_mesh("cpu", mesh_shape)
        given = [
            distribute_tensor(each, mesh, places).requires_grad_()
            for each, places in zip(made_of, layouts, strict=True)
        ]
        out = flex_attention(*given, **how)
        torch.testing.assert_close(out.full_tensor(), wanted)
        out.backward(distribute_tensor(weight, mesh, out.placements))
        for each, of in zip(given, plain, strict=True):
            torch.testing.assert_close(each.grad.full_tensor(), of.grad)
        return out.placements

    size = torch.Size(mesh_shape).numel()
    found = run_threads(body, size, timeout_s=120)
    assert found == [tuple(expected or layouts[0])] * size
    return found


S, R = Shard, Replicate()
ALIKE = [
    [S(0)], [S(1)], [S(2)], [R], [S(0), S(1)], [S(1), S(0)], [S(1), S(1)], [S(0), S(2)],
    [S(2), S(2)],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["none", "causal", "documents"])
@pytest.mark.parametrize("places", ALIKE, ids=str)
def test_each_layout_gives_the_output_and_the_gradients_of_one_device(
    kind: str, places: Any
) -> None:
    shape = (2,) * len(places)
    check(shape, [places] * 3, inputs(), block_mask=mask(kind), score_mod=slopes)


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        ([[R], [S(1)], [S(1)]], [S(1)]),
        ([[S(0)], [R], [S(2)]], [S(0)]),
        ([[S(2)], [R], [R]], [S(2)]),
        ([[R], [S(2)], [S(2)]], [R]),
        ([[S(3)], [S(3)], [S(3)]], [R]),
        ([[S(1)], [S(0)], [R]], [S(1)]),
    ],
    ids=str,
)
def test_keys_and_values_follow_the_queries(layouts: Any, expected: Any) -> None:
    check((2,), layouts, inputs(), expected, block_mask=mask("documents"), score_mod=slopes)


def test_groups_of_heads_stay_together() -> None:
    how = {"enable_gqa": True, "block_mask": mask("documents")}
    check((2,), [[S(1)]] * 3, inputs(kv_heads=2), **how)
    check((4,), [[S(1)]] * 3, inputs(kv_heads=2), [R], **how)


def test_uneven_shards_and_shards_that_would_be_empty() -> None:
    check((3,), [[S(1)]] * 3, inputs(heads=4), [R], block_mask=mask("causal"))
    check((3,), [[S(1)]] * 3, inputs(heads=5), block_mask=mask("causal"))
    check((3,), [[S(0)]] * 3, inputs(batch=5), block_mask=mask("causal"))
    check((2,), [[S(2)]] * 3, inputs(), [R], block_mask=mask("causal", 64))


def test_partial_sums_are_reduced_first() -> None:
    made_of = inputs()
    wanted = flex_attention(*made_of, block_mask=mask("causal"))

    def body() -> None:
        mesh = init_device_mesh("cpu", (2,))
        given = [DTensor.from_local(each / 2, mesh, [Partial()]) for each in made_of]
        out: Any = flex_attention(*given, block_mask=mask("causal"))
        torch.testing.assert_close(out.full_tensor(), wanted)

    run_threads(body, 2)


def test_heads_need_no_communication_and_statistics_are_sharded_alike() -> None:
    made_of = inputs()
    aux = AuxRequest(lse=True)
    wanted, stats = flex_attention(*made_of, return_aux=aux)

    def body() -> None:
        mesh = init_device_mesh("cpu", (2,))
        given = [distribute_tensor(each, mesh, [Shard(1)]) for each in made_of]
        with commtrace.record(detail="collective") as recording:
            out, found = flex_attention(*given, return_aux=aux)
        assert recording.total() == 0
        assert found.lse.placements == (Shard(1),)
        torch.testing.assert_close(out.full_tensor(), wanted)
        torch.testing.assert_close(found.lse.full_tensor(), stats.lse)
        assert found.max_scores is None

    run_threads(body, 2)


def biased(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + 0.25 * h - 0.125 * b + 0.01 * q * k


def compiled_on_a_rank() -> None:
    mesh = init_device_mesh("cpu", (2,))
    made_of = [each.float() for each in inputs()]
    wanted = flex_attention(*made_of, block_mask=mask("documents"), score_mod=biased)
    for backend, places in (
        ("aot_eager", [S(1)] * 3),
        ("aot_eager", [S(2), R, S(2)]),
        ("inductor", [R, S(1), R]),
    ):
        torch.compiler.reset()
        given = [
            distribute_tensor(each, mesh, [place])
            for each, place in zip(made_of, places, strict=True)
        ]
        attend = torch.compile(flex_attention, backend=backend, fullgraph=True)
        out = attend(*given, block_mask=mask("documents"), score_mod=biased)
        torch.testing.assert_close(out.full_tensor(), wanted)


def test_a_compiled_function_is_one_graph_that_gives_the_same() -> None:
    run_processes(compiled_on_a_rank, 2, timeout_s=240)


def test_steps_do_not_compile_anew() -> None:
    made_of = inputs()

    def body() -> None:
        mesh = init_device_mesh("cpu", (2,))
        given = [distribute_tensor(each, mesh, [Shard(1)]) for each in made_of]
        for _ in range(20):
            flex_attention(*given, block_mask=mask("documents"), score_mod=slopes)

    run_threads(body, 2)


def test_what_cannot_be_attended_is_refused_on_all_ranks() -> None:
    made_of = inputs()
    bias = torch.zeros(H, dtype=torch.float64, requires_grad=True)

    def body() -> None:
        mesh = init_device_mesh("cpu", (2,))
        q, k, v = (distribute_tensor(each, mesh, [Shard(1)]) for each in made_of)
        with pytest.raises(MixedTensorError, match="got mixed torch"):
            flex_attention(q, k, made_of[2])
        held = bias
        with pytest.raises(PlacementError, match="its own part of the scores"):
            flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + held[h])
        sharded = distribute_tensor(bias.detach(), mesh, [Shard(0)])
        with pytest.raises(PlacementError, match="full_tensor"):
            flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + sharded[h])

    run_threads(body, 2)


def test_torchs_function_keeps_its_signature_and_plain_tensors_their_result() -> None:
    names = list(inspect.signature(flex_attention).parameters)
    assert names[:5] == ["query", "key", "value", "score_mod", "block_mask"]
    out = flex_attention(*inputs(), block_mask=mask("causal"))
    assert type(out) is torch.Tensor
