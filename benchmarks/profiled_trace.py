"""Large traces as torch.profiler writes them, for measuring their import.

The events describe a training step with tensor- and data-parallel groups, in Kineto's layout of
2025: modules and functions (`with_stack=True`), operators on two threads, launches with their flow
arrows, kernels with their occupancy, and collectives with NCCL's metadata, whose stream waits for
computation and is waited for. They are written step by step, so that a trace may be larger than the
memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

NUM_LAYERS = 24
OPERATORS_OF_LAYER = 24
LAYER_US = 1600

_GEMM = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>"
    "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8::Params)"
)
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, "
    "3ul>)"
)
_COLLECTIVES = (
    ("_allgather_base", "c10d::_allgather_base_", "ncclDevKernel_AllGather_RING_LL"),
    ("_reduce_scatter_base", "c10d::_reduce_scatter_base_",
     "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"),
    ("allreduce", "c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
)  # fmt: skip


def write_profile(path: Path, rank: int, num_ranks: int, num_bytes: int) -> None:
    """Write the trace of a rank, of at least `num_bytes`, with whole steps."""
    about = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": num_ranks, "pg_count": 1,
            "pg_config": [{
                "pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
                "pg_size": num_ranks, "ranks": list(range(num_ranks)),
            }],
        },
        "host_name": "node0",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
    }  # fmt: skip
    with path.open("w") as stream:
        stream.write(json.dumps(about)[:-1] + ',\n  "traceEvents": [')
        writer = _Writer(stream, rank, num_ranks)
        step = 0
        while stream.tell() < num_bytes:
            writer.step(step)
            step += 1
        stream.write(
            '\n  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 0}'
            '\n  ],\n  "traceName": "trace.json"\n}'
        )


class _Writer:
    """Writes the events of a rank."""

    def __init__(self, stream: TextIO, rank: int, num_ranks: int) -> None:
        self._stream = stream
        self._pid = 4000 + rank
        self._ids = 0
        self._correlation = 100_000
        self._rank = rank
        self._group = (
            f'"Group size": {num_ranks}, "Process Group Name": "0", '
            '"Process Group Description": "default_pg", '
            f'"Process Group Ranks": "{list(range(num_ranks))}"'
        )

    def step(self, number: int) -> None:
        """Write a step: the layers forward on the main thread, and backward on autograd's."""
        length = 2 * NUM_LAYERS * LAYER_US
        at = 5_000_000.0 + number * length
        self._event("user_annotation", f"ProfilerStep#{number}", at, length, self._pid, "")
        for place in range(2 * NUM_LAYERS):
            layer = place if place < NUM_LAYERS else 2 * NUM_LAYERS - 1 - place
            self._stream.writelines(self._layer(at + place * LAYER_US, layer, place >= NUM_LAYERS))

    def _layer(self, at: float, layer: int, is_backward: bool) -> Iterator[str]:
        thread = self._pid + (50 if is_backward else 0)
        if is_backward:
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            yield self._text("cpu_op", name, at, LAYER_US - 5, thread, self._operator(""))
        else:
            yield self._python(f"nn.Module: Block_{layer}", at, LAYER_US - 5, thread)
            yield self._python("train.py(120): forward", at + 1, LAYER_US - 8, thread)
        for number in range(OPERATORS_OF_LAYER):
            yield from self._computed(at + 10 + 60 * number, thread, number, is_backward)
        yield from self._communicated(at + 1480, thread, (layer + is_backward) % 3)

    def _computed(self, at: float, thread: int, number: int, is_backward: bool) -> Iterator[str]:
        """Yield an operator with the functions around it, its launch and its kernel."""
        if not is_backward:
            yield self._python(f"nn.Module: Linear_{number}", at, 55, thread)
            for depth in range(3):
                line = 90 + 7 * number + depth
                name = f"torch/nn/modules/module.py({line}): _call_impl"
                yield self._python(name, at + 1 + depth, 52 - 2 * depth, thread)
        shapes = '"Input Dims": [[4096], [8192, 4096], [4096, 4096], [], []], "Input type": '
        shapes += '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], '
        yield self._text("cpu_op", "aten::linear", at + 5, 40, thread, self._operator(shapes))
        yield self._text("cpu_op", "aten::addmm", at + 6, 38, thread, self._operator(shapes))
        external, name = self._ids, _GEMM if number % 2 else _ELEMENTWISE
        yield from self._launched(at + 10, thread, name, at + 400, 45, 7, external, "")

    def _communicated(self, at: float, thread: int, which: int) -> Iterator[str]:
        """Yield a collective, with NCCL's metadata on its description and on its kernel."""
        name, operator, kernel = _COLLECTIVES[which]
        meta = (
            f'"Collective name": "{name}", "In msg nelems": 4194304, "Out msg nelems": 4194304, '
            f'"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", {self._group}'
        )
        own = f'{meta}, "Global rank start": 0, "Global rank stride": 1, "Rank": {self._rank}, '
        yield self._text("cpu_op", operator, at, 90, thread, self._operator(""))
        yield self._text("cpu_op", "record_param_comms", at + 5, 70, thread, self._operator(own))
        external = self._ids
        title = f"nccl:{name}"
        yield self._text("user_annotation", title, at + 8, 60, thread, self._operator(""))
        yield from self._waited(at + 10, thread, 7, 20)
        arguments = "(ncclDevKernelArgsStorage<4096ul>)"
        yield from self._launched(
            at + 20, thread, kernel + arguments, at + 420, 300 + 7 * self._rank, 20, external,
            f", {meta}",
        )  # fmt: skip
        yield from self._waited(at + 30, thread, 20, 7)

    def _waited(self, at: float, thread: int, of_stream: int, stream: int) -> Iterator[str]:
        """Yield an event of a stream, and the wait of another stream for it, with its record."""
        self._correlation += 2
        own = self._correlation
        ids = f'"External id": {self._ids}, "cbid": 135, "correlation": {own - 1}'
        yield self._text("cuda_runtime", "cudaEventRecord", at, 2, thread, ids)
        ids = f'"External id": {self._ids}, "cbid": 147, "correlation": {own}'
        yield self._text("cuda_runtime", "cudaStreamWaitEvent", at + 3, 2, thread, ids)
        facts = (
            f'"External id": {self._ids}, "cuda_sync_kind": "Stream Wait Event", '
            f'"wait_on_stream": {of_stream}, "wait_on_cuda_event_record_corr_id": {own - 1}, '
            f'"wait_on_cuda_event_id": 9, "stream": {stream}, "correlation": {own}, '
            '"device": 0, "context": 1'
        )
        yield self._text("cuda_sync", "Stream Wait Event", at + 4, 1, stream, facts, pid=0)

    def _launched(
        self, at: float, thread: int, name: str, start: float, length: float, stream: int,
        external: int, more: str,
    ) -> Iterator[str]:  # fmt: skip
        """Yield a launch, its flow arrow, and the kernel."""
        self._correlation += 1
        own = self._correlation
        ids = f'"External id": {external}, "cbid": 211, "correlation": {own}'
        yield self._text("cuda_runtime", "cudaLaunchKernel", at, 6, thread, ids)
        yield self._arrow("s", own, self._pid, thread, at, "")
        facts = (
            f'"External id": {external}, "queued": 0, "device": 0, "context": 1, '
            f'"stream": {stream}, "correlation": {own}, "registers per thread": 96, '
            '"shared memory": 98304, "blocks per SM": 0.969697, "warps per SM": 7.757576, '
            '"grid": [16, 8, 1], "block": [256, 1, 1], "est. achieved occupancy %": 12'
        )
        yield self._text("kernel", name, start, length, stream, facts + more, pid=0)
        yield self._arrow("f", own, 0, stream, start, ', "bp": "e"')

    def _operator(self, shapes: str) -> str:
        self._ids += 1
        number = self._ids
        return (
            f'"External id": {number}, "Record function id": {number}, {shapes}"Ev Idx": {number}'
        )

    def _python(self, name: str, at: float, length: float, thread: int) -> str:
        self._ids += 1
        facts = f'"Python id": {self._ids}, "Python parent id": {self._ids - 1}, '
        return self._text("python_function", name, at, length, thread, f'{facts}"Ev Idx": 1')

    def _event(
        self, category: str, name: str, at: float, length: float, thread: int, facts: str
    ) -> None:
        self._stream.write(self._text(category, name, at, length, thread, facts))

    def _text(
        self, category: str, name: str, at: float, length: float, thread: int, facts: str,
        pid: int | None = None,
    ) -> str:  # fmt: skip
        times = f'"ts": {at:.3f}, "dur": {length:.3f}'
        return (
            f'\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", '
            f'"pid": {self._pid if pid is None else pid}, "tid": {thread},\n'
            f'    {times},\n    "args": {{\n      {facts}\n    }}\n  }},'
        )

    def _arrow(self, phase: str, number: int, pid: int, thread: int, at: float, more: str) -> str:
        return (
            f'\n  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {thread}, '
            f'"ts": {at:.3f},\n    "cat": "ac2g", "name": "ac2g"{more}\n  }},'
        )
