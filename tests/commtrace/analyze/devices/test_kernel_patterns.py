from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.devices.kernel_patterns import kernel_patterns, setting_for
from commtrace.device_kernels import KERNELS, recognizer
from commtrace.schema import COMMUNICATION
from commtrace.settings import Settings, tomllib
from tests.commtrace.analyze.rows import call, kernel, trace_of

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
OWN = "void my_lib::fast_all_reduce<float, 8>(float*, int)"


def run(*, kernels: dict[str, str] | None = None) -> Frames:
    """Kernels of a rank: two that calls have, a kernel that the profile describes, and others."""
    comm = [
        call(id=0, kind="all_reduce"),
        call(id=1, kind="all_to_all"),
        call(id=2, kind="broadcast"),
    ]
    sent: dict[str, Any] = {"category": COMMUNICATION}
    made = [
        kernel(at=0, until=100, name=NCCL, call_id=0, **sent),
        kernel(at=100, until=150, name=SEND_RECV, call_id=1, **sent),
        kernel(at=200, until=220, name=SEND_RECV, **sent),  # of no known call
        kernel(at=300, until=330, name="opaque_kernel", call_id=2, **sent),
        kernel(at=400, until=410, name=OWN),
        kernel(at=410, until=425, name=OWN),
        kernel(at=500, until=900, name="ampere_bf16_gemm"),
        kernel(at=900, until=905, name="Memcpy DtoD nccl", category="memcpy"),
    ]
    rows = [each._replace(id=number) for number, each in enumerate(made)]
    frames = load(trace_of(comm, kernels=rows))
    return replace(frames, settings=Settings(kernels=kernels or {}))


def test_each_name_comes_with_the_pattern_that_matched_it() -> None:
    table = kernel_patterns(run())
    found = table.set_index(["name", "kind"])
    assert found["matched_by"].to_dict() == {
        (NCCL, "all_reduce"): "built-in",
        (SEND_RECV, "all_to_all"): "built-in",
        (SEND_RECV, ""): "built-in",
        ("opaque_kernel", "broadcast"): "description",
        (OWN, "all_reduce"): "nothing",
    }
    for row in table.to_dict("records"):
        assert (row["pattern"] in KERNELS) == (row["matched_by"] == "built-in")
        assert not row["pattern"] or re.search(row["pattern"], row["name"])
        assert row["is_communication"] == (row["name"] != OWN)
    assert table["time_ns"].tolist() == sorted(table["time_ns"], reverse=True)
    assert found.loc[(OWN, "all_reduce"), ["num_kernels", "time_ns"]].tolist() == [2, 25]


def test_a_kernel_that_no_pattern_matched_comes_with_the_line_that_makes_it_communication() -> None:
    table = kernel_patterns(run())
    (line,) = table.loc[table["setting"] != "", "setting"]
    setting = tomllib.loads(f"[kernels]\n{line}\n")["kernels"]
    assert list(setting.values()) == ["all_reduce"]
    kernel_found = recognizer(setting)(OWN)
    assert kernel_found is not None
    assert kernel_found.kind == "all_reduce"
    after = kernel_patterns(run(kernels=setting)).set_index("name").loc[OWN]
    assert (after["matched_by"], after["pattern"]) == ("settings", next(iter(setting)))
    assert after["setting"] == ""
    assert not after["is_communication"]  # until the profile is imported again


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("my::a2a::AllToAllKernel<int>", "all_to_all"),
        ("void (anonymous namespace)::reduce_scatter_ll(int*)", "reduce_scatter"),
        ("triton_red_fused_all_gather_mm_0", "all_gather"),
        ("rcclGeneric", "KIND"),
        ("void deep_ep::internode_ll::clean<1>()", "KIND"),
        ("x'y\n\\nvshmem_put", "KIND"),
        ("größe::nccl_größe", "KIND"),
    ],
)
def test_a_line_is_valid_and_matches_the_kernel_whatever_its_name(name: str, kind: str) -> None:
    setting = tomllib.loads(f"[kernels]\n{setting_for(name)}\n")["kernels"]
    assert list(setting.values()) == [kind]
    assert fnmatchcase(name, next(iter(setting)))


def test_kernels_that_only_share_a_word_with_communication_are_not_listed() -> None:
    names = ["scatter_gather_elementwise_kernel", "reduce_kernel<512, 1>", "broadcast_add"]
    made = [kernel(id=place, at=0, until=9, name=name) for place, name in enumerate(names)]
    assert kernel_patterns(load(trace_of(kernels=made))).empty
