"""`parallelize_pretrained`: applies the tensor-parallel plan of a transformers model.

A plan maps names of modules and of parameters (`model.layers.*.mlp.experts.down_proj`) to names of
styles. The tables below map each name to a style, or to a placement of the parameter. The model is
called as before, with plain tensors that are the same on every rank, and returns such tensors.
Nothing here imports transformers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from dtensor_core.api import distribute_tensor
from dtensor_core.errors import four_parts
from dtensor_core.mesh import DeviceMesh, current_mesh
from dtensor_core.parallel.api import PlanError
from dtensor_core.parallel.base import ParallelStyle
from dtensor_core.parallel.experts import ExpertParallel
from dtensor_core.parallel.layers import (
    ColwiseParallel,
    PackedColwiseParallel,
    PackedRowwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)
from dtensor_core.parallel.local import (
    ExpertTensorParallel,
    LocalParameters,
    PartialGradientOfTail,
    ReplicatedForShards,
    SharedInput,
    SummedOutput,
    place,
)
from dtensor_core.placement import Placement, Replicate, Shard, _StridedShard
from dtensor_core.tensor import DTensor

_REPLICATED = Replicate()


def _latent_tail(model: Any, module: nn.Module) -> ParallelStyle:
    return PartialGradientOfTail(model.config.get_text_config().qk_rope_head_dim)


def _experts(model: Any, module: nn.Module) -> ParallelStyle:
    """Slices of all experts, or complete experts if the plan shards parameters by expert."""
    held = module.parameters(recurse=False)
    layouts = {each.placements for each in held if isinstance(each, DTensor)}
    return (
        ExpertParallel(input_layouts=_REPLICATED)
        if layouts == {(Shard(0),)}
        else ExpertTensorParallel()
    )


def _style(kind: Callable[..., ParallelStyle], **options: Any) -> Callable[..., ParallelStyle]:
    return lambda model, module: kind(**options)


def _unchanged(model: Any, module: nn.Module) -> None:
    return None


# The style of a module, made with its model. None: the module is left alone.
MODULE_STYLES: Mapping[str, Callable[[Any, nn.Module], ParallelStyle | None]] = {
    "colwise": _style(ColwiseParallel),
    "colwise_gather_output": _style(ColwiseParallel, output_layouts=_REPLICATED),
    "colwise_rep": _style(ColwiseParallel, output_layouts=_REPLICATED),
    "rowwise": _style(RowwiseParallel),
    "rowwise_split_input": _style(RowwiseParallel, input_layouts=_REPLICATED),
    "rowwise_rep": _style(RowwiseParallel, input_layouts=_REPLICATED),
    "embedding_rowwise": _style(RowwiseParallel, input_layouts=_REPLICATED),
    "embedding_colwise": _style(ColwiseParallel, output_layouts=_REPLICATED),
    "packed_colwise": _style(PackedColwiseParallel),
    "packed_rowwise": _style(PackedRowwiseParallel),
    "sequence_parallel": _style(SequenceParallel, use_local_output=True),
    "replicated_with_grad_allreduce": _style(ReplicatedForShards),
    "mla_kv_a_proj": _latent_tail,
    "all_reduce": _style(SummedOutput),
    "moe_tp_experts": _experts,
    "moe_identity_expert": _style(SharedInput),
    "ep_dispatch_experts": _style(ExpertParallel, input_layouts=_REPLICATED),
    "ep_router": _unchanged,  # of older plans: ExpertParallel takes the router's output unchanged
    "local_params": _style(LocalParameters),
    "replicate": _unchanged,
}


def _full(ndim: int) -> Placement:
    return _REPLICATED


def _experts_apart(ndim: int) -> Placement:
    return Shard(0)


def _columns(ndim: int) -> Placement:
    return Shard(max(ndim - 2, 0))


def _packed_columns(ndim: int) -> Placement:
    return _StridedShard(max(ndim - 2, 0), split_factor=2)


def _rows_of_last(ndim: int) -> Placement:
    return Shard(ndim - 1) if ndim > 1 else _REPLICATED


def _packed_last(ndim: int) -> Placement:
    return _StridedShard(ndim - 1, split_factor=2) if ndim > 1 else _REPLICATED


# The placement of a parameter that the plan names, by its number of dims: [..., out, in].
PARAMETER_LAYOUTS: Mapping[str, Callable[[int], Placement]] = {
    "colwise": _columns,
    "rowwise": _rows_of_last,
    "packed_colwise": _packed_columns,
    "packed_rowwise": _packed_last,
    "grouped_gemm": _experts_apart,
    "replicate": _full,
}


def parallelize_pretrained(
    model: Any,
    device_mesh: DeviceMesh | None = None,
    plan: Mapping[str, str] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Any:
    """Apply the tensor-parallel plan of a transformers model, in place.

    Inputs must be the same on every rank; outputs, and gradients of parameters that stay plain,
    then are too. Tied weights stay tied. `model.save_pretrained`, which all ranks must call, writes
    the full weights.

        model = AutoModelForCausalLM.from_pretrained(name)
        parallelize_pretrained(model, init_device_mesh("cuda", (8,)))

    Args:
        model: The model.
        device_mesh: A 1D mesh; from the innermost `with mesh:` by default.
        plan: The plan; `model.tp_plan` by default. `{**model.tp_plan, **model.ep_plan}` gives each
            rank complete experts instead of slices of all.
        src_data_rank: The coordinate of the rank whose parameters are distributed; with None each
            rank keeps its part of its own.

    Returns:
        The same model.

    Raises:
        PlanError: A style is unknown, the ranks can't share the heads evenly, or the plan names
            only one of several tied weights (a TypeError).
        TiedError: The plan gives tied weights two layouts.
    """
    mesh = current_mesh(device_mesh)
    names = dict((model.tp_plan or {}) if plan is None else plan)
    _check(model, mesh, names)
    tied = _tied(model)
    for name, style, module, parameter in _resolved(model, names):
        if parameter is None:
            made = MODULE_STYLES[style](model, module)
            if made is not None:
                made.src_data_rank = src_data_rank
                made._apply(module, mesh)
        elif module._parameters[parameter] is not None:
            placement = _layout(name, style, module._parameters[parameter])
            place(module, parameter, mesh, placement, src_data_rank)
    for places in tied:
        _tie(places)
    if src_data_rank is not None:
        _share_plain(model, mesh, src_data_rank)
    return model


def _share_plain(model: nn.Module, mesh: DeviceMesh, source: int) -> None:
    """Broadcast the parameters that the plan has left plain from one rank to all."""
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor) and not parameter.is_meta:
            shared = distribute_tensor(parameter.detach(), mesh, src_data_rank=source)
            parameter.data.copy_(shared.to_local())


def _layout(name: str, style: str, parameter: Any) -> Placement:
    if style in PARAMETER_LAYOUTS:
        return PARAMETER_LAYOUTS[style](parameter.ndim)
    raise PlanError(
        four_parts(
            summary=f"style {style!r} of the parameter {name}",
            found="a style for modules",
            hint=f"one of {', '.join(PARAMETER_LAYOUTS)}",
        )
    )


def _check(model: Any, mesh: DeviceMesh, plan: Mapping[str, str]) -> None:
    known = sorted({**MODULE_STYLES, **PARAMETER_LAYOUTS})
    unknown = sorted({*plan.values()} - {*known})
    wrong = {
        f"unknown styles: {', '.join(unknown)}": (unknown, f"one of {', '.join(known)}"),
        f"a mesh of {mesh.ndim} axes": (mesh.ndim != 1, 'an axis of it, mesh["tp"] for instance'),
        "no plan, and the model has none of its own": (
            not plan,
            'plan={"model.layers.*.mlp.up_proj": "colwise", ...}',
        ),
    }
    for found, (is_so, hint) in wrong.items():
        if is_so:
            raise PlanError(
                four_parts(
                    summary=f"parallelize_pretrained of a {type(model).__name__}",
                    found=found,
                    why="a plan maps names of modules to names of styles, along a single axis",
                    hint=hint,
                )
            )
    config = model.config.get_text_config()
    by_heads = [name for name, style in plan.items() if style == "colwise" and _HEADS.search(name)]
    for option in ("num_attention_heads", "num_key_value_heads") if by_heads else ():
        heads = getattr(config, option, None)
        if isinstance(heads, int) and heads % mesh.size():
            raise PlanError(
                four_parts(
                    summary=f"parallelize_pretrained over {mesh.size()} ranks",
                    found=f"{option}={heads}, and {by_heads[0]} is sharded by heads",
                    why="attention needs the same number of heads on every rank",
                    hint=f"a number of ranks that divides {heads}, or a plan without {by_heads[0]}",
                )
            )


_HEADS = re.compile(r"\b([qkv]_proj|qkv_proj|query_key_value)$")


def _resolved(
    model: Any, plan: Mapping[str, str]
) -> Iterator[tuple[str, str, nn.Module, str | None]]:
    """Yield name, style, module, and the parameter's own name; parameters before modules.

    A model's own plans may name modules that this model lacks, so these don't warn.
    """
    modules = dict(model.named_modules())
    several = {**modules, **dict(model.named_parameters(remove_duplicate=False))}
    own_plans = {**(model.tp_plan or {}), **(getattr(model, "ep_plan", None) or {})}
    found: list[tuple[str, str, nn.Module, str | None]] = []
    for pattern, style in plan.items():
        matches = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+")).fullmatch
        names = [name for name in several if matches(name)]
        if not names and pattern not in own_plans:
            warnings.warn(f"plan key {pattern!r} names no module or parameter", stacklevel=3)
        for name in names:
            owner, _, own = name.rpartition(".")
            if name in modules:
                found.append((name, style, modules[name], None))
            else:
                found.append((name, style, modules[owner], own))
    # Parameters come first, as `_experts` chooses the style of a module by their layouts.
    yield from sorted(found, key=lambda each: each[3] is None)


Places = list[tuple[nn.Module, str]]


def _tied(model: nn.Module) -> list[Places]:
    """Return the owners of each parameter that several modules share."""
    places: dict[int, Places] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [each for each in places.values() if len(each) > 1]


def _tie(places: Places) -> None:
    """Make modules share a parameter again, after it was placed once for each of them."""
    held = [module._parameters[name] for module, name in places]
    layouts = {each.placements if isinstance(each, DTensor) else None for each in held}
    if len(layouts) > 1:
        raise PlanError(
            four_parts(
                summary="a plan that keeps tied weights tied",
                found=", ".join(
                    f"{type(module).__name__}.{name} placed "
                    f"{each.placements if isinstance(each, DTensor) else 'as a plain tensor'}"
                    for (module, name), each in zip(places, held, strict=True)
                ),
                why="a tied parameter is a single tensor with a single layout",
                hint="use styles that shard the weight in the same way, or untie the parameters",
            )
        )
    for module, name in places:
        module._parameters[name] = held[0]
