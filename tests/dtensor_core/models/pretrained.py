"""Models of `transformers` with a few thousand parameters each, built from configurations.

Nothing is downloaded. Each comes with inputs of a batch of four, and a target per row of logits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import torch.nn.functional as F
import transformers
from torch import nn

VOCABULARY, BATCH, LENGTH = 32, 4, 6
_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
_WHISPER = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "num_mel_bins": 6, "max_source_positions": 8,
    "max_target_positions": 16, "dropout": 0.0, "use_cache": False, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
_DEEPSEEK = {
    **_DECODER, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
    "moe_intermediate_size": 8, "first_k_dense_replace": 1,
}  # fmt: skip

Inputs = dict[str, torch.Tensor]


def tokens(seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=dice)


def _words() -> Inputs:
    return {"input_ids": tokens()}


def _padded() -> Inputs:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, 4:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def _images() -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, 8, 8, dtype=torch.float64)}


def _translated() -> Inputs:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(1)}


def _spoken() -> Inputs:
    features = torch.randn(BATCH, 6, 16, dtype=torch.float64)
    return {"input_features": features, "decoder_input_ids": tokens(1)}


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model by the name of its class, the options of its configuration, and its inputs.

    Grouped products do not support float64, so the models that use them are in float32.
    """

    model: str
    config: str
    options: Mapping[str, Any]
    inputs: Callable[[], Inputs] = _words
    dtype: torch.dtype = torch.float64
    classes: int = VOCABULARY

    def make(self, **options: Any) -> Any:
        """Build the model, with the same weights each time."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**{**self.options, **options})
        return getattr(transformers, self.model)(config).to(self.dtype)

    def batch(self) -> Inputs:
        """Create the inputs, and the targets of the logits under `targets`."""
        torch.manual_seed(1)
        given = self.inputs()
        shape = (BATCH,) if "pixel_values" in given else (BATCH, LENGTH)
        given["targets"] = torch.randint(self.classes, shape)
        return {n: v.to(self.dtype) if v.is_floating_point() else v for n, v in given.items()}


MODELS = {
    "llama": Pretrained("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "qwen3": Pretrained("Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 4}),
    "gpt2": Pretrained("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "bert": Pretrained(
        "BertForMaskedLM",
        "BertConfig",
        {**_ENCODER, "vocab_size": VOCABULARY, "max_position_embeddings": 16},
        _padded,
    ),
    "t5": Pretrained("T5ForConditionalGeneration", "T5Config", _T5, _translated),
    "vit": Pretrained(
        "ViTForImageClassification",
        "ViTConfig",
        {**_ENCODER, "image_size": 8, "patch_size": 4, "num_labels": 5},
        _images,
        classes=5,
    ),
    "whisper": Pretrained("WhisperForConditionalGeneration", "WhisperConfig", _WHISPER, _spoken),
    "mixtral": Pretrained(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        dtype=torch.float32,
    ),
    "qwen3_moe": Pretrained(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            **_DECODER, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 8, "norm_topk_prob": True,
        },
        dtype=torch.float32,
    ),
    "gpt_oss": Pretrained(
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_DECODER, "head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
            "sliding_window": 4,
        },
        dtype=torch.float32,
    ),
    "deepseek_v3": Pretrained(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", _DEEPSEEK, dtype=torch.float32
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """Full tensors of a training step: gradients are clipped, weights those before the step."""

    loss: torch.Tensor
    logits: torch.Tensor
    norm: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


def full(value: Any) -> torch.Tensor:
    value = value.detach()
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


def train(model: nn.Module, batch: Inputs, steps: int = 3) -> list[Step]:
    """Train some steps with AdamW and clipping.

    AdamW turns a gradient that consists of rounding errors into a step of full size, unless its
    epsilon is larger than that gradient.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    targets = batch["targets"]
    given = {name: value for name, value in batch.items() if name != "targets"}
    taken = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(**given).logits
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        gradients = {n: full(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        taken.append(Step(full(loss), full(logits), full(norm), gradients))
        optimizer.step()
    return taken


def expect_same(taken: list[Step], expected: list[Step]) -> None:
    """Raise AssertionError, with its name, for the first tensor that differs.

    The models compute their norms and rotary embeddings in float32, whatever the weights are.
    """
    assert len(taken) == len(expected)
    for number, (mine, theirs) in enumerate(zip(taken, expected, strict=True)):
        assert mine.gradients.keys() == theirs.gradients.keys()
        pairs = {
            "loss": (mine.loss, theirs.loss),
            "logits": (mine.logits, theirs.logits),
            "norm": (mine.norm, theirs.norm),
            **{name: (mine.gradients[name], each) for name, each in theirs.gradients.items()},
        }
        for name, (found, wanted) in pairs.items():
            torch.testing.assert_close(
                found, wanted, atol=2e-5, rtol=1e-4,
                msg=lambda text, where=f"step {number}, {name}": f"{where}: {text}",
            )  # fmt: skip
