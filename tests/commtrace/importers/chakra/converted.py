"""Execution traces of Chakra that commtrace did not write, as converters and generators do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.commtrace.exporters.chakra_files import message, written

TYPES = {
    "metadata": 1, "load": 2, "compute": 4, "send": 5, "recv": 6, "collective": 7,
}  # fmt: skip


def node(
    number: int, kind: str, name: str = "", *, needs: Sequence[int] = (), after: Sequence[int] = (),
    start: int = 0, lasts: int = 0, **attributes: Any,
) -> Any:  # fmt: skip
    """A node; numbers are written as `int64_val`, as Chakra's converter does."""
    found = message(
        "Node", id=number, name=name or kind, type=TYPES.get(kind, 0), data_deps=needs,
        ctrl_deps=after, start_time_micros=start, duration_micros=lasts,
    )  # fmt: skip
    for key, value in attributes.items():
        kinds = {bool: "bool_val", int: "int64_val", str: "string_val"}
        found.attr.add(name=key, **{kinds[type(value)]: value})
    return found


def file_of(*nodes: Any, version: str = "0.0.4") -> bytes:
    return written(message("GlobalMetadata", version=version), *nodes)


def training(rank: int) -> bytes:
    """A forward pass, an all-gather in a group, an all-reduce of all ranks and a transfer."""
    peer = {"comm_src": 0, "comm_dst": 1, "comm_tag": 3, "comm_size": 64}
    return file_of(
        node(1, "compute", "aten::mm", start=10, lasts=5, is_cpu_op=True, num_ops=99,
             tensor_size=12),
        node(2, "compute", "gemm", needs=[1], start=20, lasts=30, is_cpu_op=False, stream=7),
        node(3, "collective", "ncclDevKernel_AllGather", needs=[2], start=60, lasts=10,
             comm_type=2, comm_size=100, pg_name="5"),
        node(4, "collective", "ncclDevKernel_AllReduce", needs=[3], start=80, lasts=10,
             comm_type=0, comm_size=32),
        node(5, "recv" if rank else "send", needs=[4], start=100, lasts=1, **peer),
        node(6, "compute", "aten::relu", needs=[1, 4, 5], start=130, lasts=2, is_cpu_op=True),
        node(7, "load", needs=[6], tensor_size=5),
    )  # fmt: skip


def folder_of_files(num_ranks: int = 2) -> dict[str, bytes]:
    """Files of ranks, and the ranks of a group."""
    files = {f"workload.{rank}.et": training(rank) for rank in range(num_ranks)}
    return {**files, "comm_group.json": b'{"5": [0, 1]}'}
