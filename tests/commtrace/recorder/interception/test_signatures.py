"""The table of operators compared with the operators of the installed torch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed._functional_collectives  # these imports register operators
import torch.distributed._symmetric_memory
import torch.distributed.fsdp
import torch.distributed.tensor

from commtrace.collective_table import KINDS
from commtrace.recorder.events.signature import RESULT
from commtrace.recorder.interception.signatures import SIGNATURES, SILENT
from commtrace.recorder.interception.untried_torch import communication_operators

NEW = {
    "_c10d_functional::wait_tensors": (2, 15),
    "c10d::gather_into_tensor_": (2, 14),
    "symm_mem::_low_contention_all_gather_ce_multicast": (2, 14),
    "symm_mem::_low_contention_all_gather_ce_multicast_out": (2, 14),
    "symm_mem::memcpy_to_multicast_": (2, 14),
    "symm_mem::nccl_all_to_all_nd": (2, 14),
    "symm_mem::nccl_get_out": (2, 14),
    "symm_mem::nvshmem_get_out": (2, 14),
}
"""Operators of a torch that is newer than the oldest supported version."""

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
OPERATORS = communication_operators()
SCHEMAS = {
    schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name in OPERATORS
}
AVAILABLE = [name for name in SIGNATURES if NEW.get(name, TORCH) <= TORCH]


def test_every_operator_of_torch_that_communicates_is_in_the_table() -> None:
    lacking = {name for name, since in NEW.items() if since > TORCH}
    assert set(SCHEMAS) == (set(SIGNATURES) | set(SILENT)) - lacking


def test_no_operator_is_said_to_be_both() -> None:
    assert not set(SIGNATURES) & set(SILENT)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_kind_of_every_operator_has_its_formulas(name: str) -> None:
    assert SIGNATURES[name].kind in KINDS


# Required name of an argument in torch's schema.
NAMES = {
    "group": {"process_group", "group_name"},
    "reduce_op": {"reduce_op", "red_op"},
    "root": {"root_rank", "src", "root"},
    "peer": {"dst", "src"},
    "split": {"input_split_sizes"},
    "is_async": {"async_op"},
}
_INPUTS = {
    "tensor", "tensors", "input", "inputs", "input_tensor", "input_tensors", "input_list",
    "local_input", "in_tile", "in_tiles", "A",
}  # fmt: skip
_OUTPUTS = {
    "tensor", "tensors", "input", "inputs", "output", "outputs", "output_tensor",
    "output_tensors", "output_lists", "out", "out_tile",
}  # fmt: skip


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("role", [*NAMES, "sent", "received"])
def test_every_position_holds_what_the_table_says(name: str, role: str) -> None:
    names = NAMES | {"sent": _INPUTS, "received": _OUTPUTS}
    position = getattr(SIGNATURES[name], role)
    found = [argument.name for argument in SCHEMAS[name].arguments]
    if position is None:
        in_place = _INPUTS & _OUTPUTS
        assert not (names[role] - in_place) & set(found) or name in EXPLAINED.get(role, ())
    elif position == RESULT:
        assert SCHEMAS[name].returns
    else:
        assert found[position] in names[role]


EXPLAINED = {
    # `src` and `dst` of a transfer are its peer, those of a broadcast its root.
    "root": ("c10d::recv_", "_c10d_functional::irecv"),
    "peer": ("_c10d_functional::broadcast", "_c10d_functional::broadcast_"),
    # These reduce a product of the arguments.
    "sent": (
        "symm_mem::fused_matmul_reduce_scatter",
        "symm_mem::fused_scaled_matmul_reduce_scatter",
    ),
}


@pytest.mark.parametrize("name", [name for name in AVAILABLE if name.startswith("c10d::")])
def test_async_operators_are_asynchronous_when_nothing_is_said(name: str) -> None:
    for argument in SCHEMAS[name].arguments:
        if argument.name == "async_op":
            assert argument.default_value is True
            break
    else:
        assert SIGNATURES[name].is_async is None
