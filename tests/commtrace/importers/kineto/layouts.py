"""Layouts of profiler traces: how releases of torch, Kineto and NCCL spell the same events.

Each row of `LAYOUTS` has the spellings of a period. Their sources are Kineto's output_json.cpp,
CuptiActivity.cpp, RocprofActivity_inl.h and the tests of its TensorBoard plugin, torch's
torch/csrc/profiler/util.cpp, and traces of these periods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BASE_NS = 1_700_000_000_000_000_000
"""Instant at which made-up programs begin."""

OPERATOR, ANNOTATION, KERNEL, RUNTIME, COPY = (
    "cpu_op", "user_annotation", "kernel", "cuda_runtime", "gpu_memcpy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """Spellings of a kind: operator, description, annotation, and in a kernel's name."""

    operator: str
    description: str
    annotation: str
    kernel: str


NAMES: Mapping[str, Names] = {
    "all_reduce": Names("allreduce_", "allreduce", "all_reduce", "AllReduce"),
    "all_gather": Names("_allgather_base_", "_allgather_base", "_all_gather_base", "AllGather"),
    "reduce_scatter": Names(
        "_reduce_scatter_base_", "_reduce_scatter_base", "_reduce_scatter_base", "ReduceScatter"
    ),
    "all_to_all": Names("alltoall_base_", "all_to_allv", "all_to_all", "SendRecv"),
    "broadcast": Names("broadcast_", "broadcast", "broadcast", "Broadcast"),
    "barrier": Names("barrier", "barrier", "all_reduce", "AllReduce"),
    "send": Names("send", "send", "send", "SendRecv"),
    "recv": Names("recv_", "recv", "recv", "SendRecv"),
}
REDUCING = ("all_reduce", "reduce_scatter", "barrier")
LISTS = ("allreduce_", "broadcast_", "send", "recv_", "barrier")
"""Operators whose tensors are a list, for which older profilers state no shapes."""

DTYPES: Mapping[str, tuple[str, str, str, str, int]] = {
    "float32": ("float", "Float", "float", "f32", 4),
    "bfloat16": ("c10::BFloat16", "BFloat16", "__nv_bfloat16", "bf16", 2),
    "uint8": ("unsigned char", "Byte", "uint8_t", "u8", 1),
}
"""Spellings in shapes, in descriptions, in kernels until NCCL 2.18 and since; bytes."""


def _until_2_18(arguments: str, kind: str, dtype: str) -> str:
    # Kernels that only move data state a reduction of bytes.
    moved = DTYPES[dtype][2] if kind in REDUCING else "int8_t"
    protocol = "SIMPLE" if NAMES[kind].kernel == "SendRecv" else "LL"
    return f"ncclKernel_{NAMES[kind].kernel}_RING_{protocol}_Sum_{moved}({arguments})"


def _since_2_19(arguments: str, kind: str, dtype: str) -> str:
    name = NAMES[kind].kernel
    reduction = f"_Sum_{DTYPES[dtype][3]}" if kind in REDUCING else ""
    return f"ncclDevKernel_{name}{reduction}{'' if name == 'SendRecv' else '_RING_LL'}({arguments})"


def nccl_2_10(kind: str, dtype: str) -> str:
    return _until_2_18("ncclWorkElem", kind, dtype)


def nccl_2_14(kind: str, dtype: str) -> str:
    return _until_2_18("ncclDevComm*, unsigned long, ncclWork*", kind, dtype)


def nccl_2_19(kind: str, dtype: str) -> str:
    return _since_2_19("ncclDevComm*, unsigned long, ncclWork*", kind, dtype)


def nccl_2_22(kind: str, dtype: str) -> str:
    return _since_2_19("ncclDevKernelArgsStorage<4096ul>", kind, dtype)


def nccl_symmetric(kind: str, dtype: str) -> str:
    """Kernels on registered windows, which not every kind has."""
    if kind == "all_reduce":
        return f"ncclSymkDevKernel_AllReduce_AGxLL_R_sum_{DTYPES[dtype][3]}(ncclSymkDevWorkArgs4K)"
    if kind == "all_gather":
        return "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)"
    return nccl_2_22(kind, dtype)


def rccl_early(kind: str, dtype: str) -> str:
    return "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"


def rccl(kind: str, dtype: str) -> str:
    return "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"


NO_ARGUMENTS, ARGUMENTS, DESCRIPTION, NUMBERED = range(4)
"""Contents of `record_param_comms`: nothing, shapes, NCCL's metadata, these and numbers."""

NO_GROUPS, GROUPS, GROUPS_AS_TEXT = range(3)
"""Groups in `distributedInfo`: none, with lists of ranks, or with texts that may be abbreviated."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Spellings of a period.

    Attributes:
        kernel_name: The name of a kernel by kind and element type.
        launch: The runtime function that launches it.
        categories: Categories that are spelled differently.
        external_id: Name of the id that a kernel shares with its operator.
        links: That id refers to the `description`, the `annotation`, or is the `correlation`; if
            empty, the kernel has none.
        has_operators: Calls pass an operator `c10d::...`.
        described: Contents of `record_param_comms`.
        has_device_arguments: Kernels state their stream and correlation; otherwise their thread is
            the stream.
        has_correlation: The correlation of communication kernels is not 0.
        has_text_threads: Threads are strings, `"24572"` and `"stream 7"`.
        is_annotated_as_operator: Annotations have the category of operators.
        annotates_batches: Transfers in a batch have annotations of their own.
        nests_barrier: A barrier is described around the description of its all-reduce.
        base_ns: Instant from which times count.
        step_ns: Precision of times.
        groups: Groups in `distributedInfo`.
        has_host: The trace names its host.
    """

    kernel_name: Callable[[str, str], str]
    launch: str
    categories: Mapping[str, str] = field(default_factory=dict)
    external_id: str = "External id"
    links: str = "description"
    has_operators: bool = True
    described: int = DESCRIPTION
    has_device_arguments: bool = True
    has_correlation: bool = True
    has_text_threads: bool = False
    is_annotated_as_operator: bool = False
    annotates_batches: bool = False
    nests_barrier: bool = False
    base_ns: int = 0
    step_ns: int = 1
    groups: int = GROUPS
    has_host: bool = True

    @property
    def has_groups(self) -> bool:
        """True if the trace states groups."""
        return self.groups != NO_GROUPS


_CAPITALS = {OPERATOR: "Operator", KERNEL: "Kernel", RUNTIME: "Runtime", COPY: "Memcpy"}
_TRIMESTER_NS = 1_696_186_170_000_000_000
"""Begin of the interval of 7,889,238 s around `BASE_NS`, from which newer releases count."""

LAYOUTS: Mapping[str, Layout] = {
    "2021": Layout(
        nccl_2_10, "cudaLaunchKernel", categories=_CAPITALS, external_id="external id",
        links="annotation", has_operators=False, described=NO_ARGUMENTS, has_text_threads=True,
        has_device_arguments=False, is_annotated_as_operator=True, nests_barrier=True,
        step_ns=1000, groups=NO_GROUPS, has_host=False,
    ),
    "2022": Layout(
        nccl_2_10, "cudaLaunchKernel", categories={KERNEL: "Kernel"}, external_id="external id",
        links="annotation", has_operators=False, described=NO_ARGUMENTS, nests_barrier=True,
        step_ns=1000, groups=NO_GROUPS, has_host=False,
    ),
    "2023": Layout(
        nccl_2_14, "cudaLaunchKernelExC", links="correlation", described=ARGUMENTS,
        nests_barrier=True, step_ns=1000, groups=NO_GROUPS, has_host=False,
    ),
    "2023, NCCL 2.19": Layout(
        nccl_2_19, "cudaLaunchKernelExC", links="", described=ARGUMENTS, nests_barrier=True,
        step_ns=1000, groups=NO_GROUPS, has_host=False,
    ),
    "2024": Layout(
        nccl_2_19, "cudaLaunchKernelExC", base_ns=_TRIMESTER_NS, annotates_batches=True,
        nests_barrier=True, has_host=False,
    ),
    "2025": Layout(nccl_2_22, "cudaLaunchKernelExC", base_ns=_TRIMESTER_NS),
    "2026": Layout(
        nccl_symmetric, "cuLaunchKernelEx", categories={RUNTIME: "cuda_driver"},
        described=NUMBERED, base_ns=_TRIMESTER_NS, groups=GROUPS_AS_TEXT,
    ),
    "ROCm 6.0": Layout(
        rccl_early, "hipExtLaunchKernel", base_ns=_TRIMESTER_NS, has_device_arguments=False,
        has_correlation=False,
    ),
    "ROCm 6.4": Layout(rccl, "hipExtLaunchKernel", base_ns=_TRIMESTER_NS),
    "ROCm 7": Layout(
        rccl, "hipLaunchKernel", categories={RUNTIME: "hip_runtime"}, links="",
        described=NUMBERED, base_ns=_TRIMESTER_NS,
    ),
}  # fmt: skip
