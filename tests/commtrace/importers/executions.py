"""ExecutionTraces as torch writes them on NCCL, whose calls are described."""

from __future__ import annotations

import json
from typing import Any


def node(
    number: int, name: str, parent: int, inputs: dict[str, Any] | None = None, **attrs: Any
) -> dict[str, Any]:
    """A node; `attrs` are further attributes."""
    empty: dict[str, Any] = {"values": [], "shapes": [], "types": [], "strides": []}
    values = {"rf_id": number, "tid": 1, "op_schema": "", **attrs}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {**empty, **(inputs or {})},
        "outputs": empty,
        "attrs": [{"name": key, "type": "x", "value": value} for key, value in values.items()],
    }


def call(number: int, parent: int, size: int, seq: int, rank: int, name: str = "allreduce") -> Any:
    """The operator of a call, and its description."""
    tensors = [[[5, 6, 0, 64, 4, "cuda:0"]], [[1024]], ["GenericList[Tensor(float)]"]]
    about = {
        "collective_name": name, "dtype": "Float", "in_msg_nelems": 1024, "out_msg_nelems": 1024,
        "in_split_size": "[]", "out_split_size": "[]", "global_rank_start": 0,
        "global_rank_stride": 1, "pg_name": "0", "pg_desc": "default_pg", "pg_size": size,
    }  # fmt: skip
    operator = node(
        number, f"c10d::{name}_", parent,
        {"values": tensors[0], "shapes": [tensors[1]], "types": tensors[2]},
    )  # fmt: skip
    inputs = [[], [seq, False], ["0", "default_pg"], rank, name, [], [], 0, 1, size]
    return [operator, node(number + 1, "record_param_comms", number, {"values": inputs}, **about)]


def document(rank: int, size: int) -> dict[str, Any]:
    """Two calls of a rank, the second in an operator of a backward pass."""
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
               "ranks": [], "group_size": size}]  # fmt: skip
    text = {"values": [json.dumps(groups)], "shapes": [[]], "types": ["String"]}
    thread = "[pytorch|profiler|execution_trace|thread]"
    nodes = [
        node(2, thread, 1, tid=1),
        node(3, "## process_group:init ##", 2, text),
        *call(4, 2, size, 1, rank),
        node(8, "_c10d_functional::all_reduce", 2),
        *call(9, 8, size, 2, rank),
        node(1, "[pytorch|profiler|execution_trace|process]", 1, tid=0),
    ]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 4711 + rank, "nodes": nodes}


def executions(size: int) -> dict[str, bytes]:
    """The files of all ranks."""
    return {f"et_rank{r}.json": json.dumps(document(r, size)).encode() for r in range(size)}
