"""Plans of transformers, applied by `parallelize_pretrained`: a model trains as on one device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from dtensor_core import DTensor, init_device_mesh
from dtensor_core.parallel import parallelize_pretrained
from dtensor_core.parallel.api import PlanError
from dtensor_core.parallel.pretrained import MODULE_STYLES, PARAMETER_LAYOUTS
from dtensor_core.testing import kept_mesh, run_threads
from dtensor_core.testing.pool import run_processes
from dtensor_core.tied import TiedError
from tests.dtensor_core.models.pretrained import MODELS, Pretrained, Step, expect_same, full, train

pytestmark = pytest.mark.filterwarnings("ignore")

PLANNED = {
    name: MODELS[name]
    for name in ("llama", "qwen3", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")
}
PLANNED["phi3"] = Pretrained(
    "Phi3ForCausalLM", "Phi3Config", {**MODELS["llama"].options, "resid_pdrop": 0.0}
)
PLANNED["deepseek_v2"] = Pretrained(
    "DeepseekV2ForCausalLM",
    "DeepseekV2Config",
    {**MODELS["deepseek_v3"].options, "topk_method": "greedy", "n_group": 1},
    dtype=torch.float32,
)
NUM_EXPERTS = {
    "mixtral": "num_local_experts", "gpt_oss": "num_local_experts", "qwen3_moe": "num_experts",
}  # fmt: skip
# Four ranks have rows of 16 bytes each, as grouped products require.
WIDER = {"num_key_value_heads": 4, "intermediate_size": 32, "moe_intermediate_size": 16}
WITH_EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v2")


@cache
def on_one_device(name: str, **options: Any) -> list[Step]:
    """Run the same training on a single device."""
    return train(PLANNED[name].make(**options), PLANNED[name].batch())


def test_every_style_of_transformers_is_known() -> None:
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    assert not {*ALL_PARALLEL_STYLES.keys()} - MODULE_STYLES.keys() - PARAMETER_LAYOUTS.keys()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", PLANNED)
def test_a_model_with_its_own_plan_trains_as_on_one_device(name: str, ranks: int) -> None:
    options = WIDER if ranks == 4 else {}

    def body() -> list[Step]:
        model = PLANNED[name].make(**options)
        assert parallelize_pretrained(model, kept_mesh((ranks,))) is model
        assert any(isinstance(each, DTensor) for each in model.parameters())
        return train(model, PLANNED[name].batch())

    expected = on_one_device(name, **options)
    for taken in run_threads(body, ranks):
        expect_same(taken, expected)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_complete_experts_on_each_rank_train_as_on_one_device(name: str, ranks: int) -> None:
    options = {} if ranks == 2 else {NUM_EXPERTS.get(name, "n_routed_experts"): 6}

    def body() -> list[Step]:
        model = PLANNED[name].make(**options)
        heads = {n: s for n, s in model.tp_plan.items() if ranks == 2 or "self_attn" not in n}
        dense = {n: s for n, s in heads.items() if ranks == 2 or "shared" not in n}
        parallelize_pretrained(model, kept_mesh((ranks,)), {**dense, **model.ep_plan})
        return train(model, PLANNED[name].batch())

    expected = on_one_device(name, **options)
    for taken in run_threads(body, ranks):
        expect_same(taken, expected)


def test_the_expert_parallel_plans_of_older_versions_work() -> None:
    def body() -> list[Step]:
        model = PLANNED["mixtral"].make()
        experts = "model.layers.*.mlp.experts"
        plan = {
            "model.layers.*.mlp.gate": "ep_router",
            f"{experts}.gate_up_proj": "grouped_gemm",
            f"{experts}.down_proj": "grouped_gemm",
            experts: "moe_tp_experts",
        }
        parallelize_pretrained(model, kept_mesh((2,)), plan)
        return train(model, PLANNED["mixtral"].batch())

    for taken in run_threads(body, 2):
        expect_same(taken, on_one_device("mixtral"))


def test_tied_weights_stay_tied() -> None:
    def body() -> list[Step]:
        model = PLANNED["llama"].make(tie_word_embeddings=True)
        parallelize_pretrained(model, kept_mesh((2,)))
        assert model.lm_head.weight is model.model.embed_tokens.weight
        return train(model, PLANNED["llama"].batch())

    for taken in run_threads(body, 2):
        expect_same(taken, on_one_device("llama", tie_word_embeddings=True))


def test_ranks_that_begin_with_other_weights_get_those_of_the_first() -> None:
    def body() -> list[Step]:
        mesh = kept_mesh((2,))
        model = PLANNED["mixtral"].make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + mesh.get_local_rank())
        parallelize_pretrained(model, mesh)
        return train(model, PLANNED["mixtral"].batch())

    for taken in run_threads(body, 2):
        expect_same(taken, on_one_device("mixtral"))


def test_the_order_of_a_plan_changes_nothing() -> None:
    def body() -> list[Step]:
        model = PLANNED["mixtral"].make()
        plan = dict(reversed([*model.tp_plan.items()]))
        parallelize_pretrained(model, kept_mesh((2,)), plan)
        return train(model, PLANNED["mixtral"].batch())

    for taken in run_threads(body, 2):
        expect_same(taken, on_one_device("mixtral"))


def test_save_pretrained_writes_full_weights_that_one_device_loads(tmp_path: Path) -> None:
    options = {"tie_word_embeddings": True}
    model = PLANNED["mixtral"].make(**options)
    expected = on_one_device("mixtral", **options)

    def body() -> dict[str, torch.Tensor]:
        mine = PLANNED["mixtral"].make(**options)
        parallelize_pretrained(mine, kept_mesh((2,)))
        train(mine, PLANNED["mixtral"].batch())
        mine.save_pretrained(tmp_path)
        assert any(tmp_path.glob("*.safetensors"))  # for every rank, once the call returns
        return {name: full(each) for name, each in mine.named_parameters()}

    weights = run_threads(body, 2)[0]
    loaded = type(model).from_pretrained(tmp_path)
    found = dict(loaded.named_parameters())
    assert found.keys() == weights.keys()
    for name, each in found.items():
        assert torch.equal(each, weights[name].cpu()), name
    again = dict(train(model, PLANNED["mixtral"].batch())[-1].gradients)
    assert again.keys() == expected[-1].gradients.keys()


def test_a_rank_that_cannot_write_fails_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("the disk is full")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", refuse)

    def body() -> str:
        model = PLANNED["llama"].make()
        parallelize_pretrained(model, kept_mesh((2,)))
        with pytest.raises(OSError, match=r"disk is full|another rank") as raised:
            model.save_pretrained(tmp_path)
        return str(raised.value)

    mine, other = run_threads(body, 2)
    assert mine == "the disk is full"
    assert other == "save_pretrained failed on another rank, whose error says why"


@pytest.mark.parametrize(
    ("ranks", "plan", "text"),
    [
        (2, {"lm_head": "colwyse"}, "unknown styles: colwyse"),
        (2, {}, "no plan, and the model has none of its own"),
        (3, None, "num_attention_heads=4"),
        (2, {"lm_head.weight": "moe_tp_experts"}, "a style for modules"),
        (2, {"lm_head": "colwise", "model.embed_tokens": "embedding_colwise"}, "tied"),
    ],
)
def test_a_plan_that_cannot_be_applied_is_refused(ranks: int, plan: Any, text: str) -> None:
    def body() -> None:
        model = PLANNED["llama"].make(tie_word_embeddings=True)
        with pytest.raises((PlanError, TiedError), match=text):
            parallelize_pretrained(model, kept_mesh((ranks,)), plan)

    run_threads(body, ranks)


def test_a_key_that_names_nothing_warns() -> None:
    def body() -> None:
        with pytest.warns(UserWarning, match="'model.lairs"):
            parallelize_pretrained(
                PLANNED["llama"].make(), kept_mesh((1,)), {"model.lairs.*.mlp": "all_reduce"}
            )

    run_threads(body, 1)


def _sharded_twice(name: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = PLANNED[name].make()
    parallelize_pretrained(model, mesh["tp"])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    batch = PLANNED[name].batch()
    mine = {n: v.chunk(2)[mesh.get_local_rank("dp")] for n, v in batch.items()}
    expected = train(PLANNED[name].make(), batch)
    for taken, wanted in zip(train(model, mine), expected, strict=True):
        torch.testing.assert_close(taken.norm, wanted.norm, atol=2e-5, rtol=1e-4)
        for key, gradient in wanted.gradients.items():
            torch.testing.assert_close(taken.gradients[key], gradient, atol=2e-5, rtol=1e-4)
    assert {type(each) for each in model.parameters()} == {DTensor}


@pytest.mark.parametrize("name", ["qwen3", "mixtral"])
def test_fsdp_around_a_planned_model_trains_as_on_one_device(name: str) -> None:
    run_processes(_sharded_twice, 4, name)
