"""Communication operators, with the positions of their arguments.

`SIGNATURES` maps an operator to its kind of communication and the positions of the process group,
the tensors and so on. Nearly every collective ends in an operator of `c10d`, whoever issues it. The
rows of other namespaces cover the exceptions: fake and meta tensors, whose kernels only compute
shapes; process groups written in Python; and symmetric memory, whose kernels access the memory of
other devices. The interception follows this table and has no special cases.
"""

from __future__ import annotations

from dataclasses import replace

from commtrace.recorder.events.signature import RECEIVED, RESULT, Signature

_all_reduce = Signature("all_reduce", group=1, sent=0, received=0, reduce_op=2, is_async=4)
_gather_all = Signature("all_gather", group=2, sent=1, received=0, is_async=3, payload=RECEIVED)
_reduce_scatter = Signature("reduce_scatter", group=2, sent=1, received=0, reduce_op=3, is_async=4)
_functional_all_reduce = Signature("all_reduce", group=2, sent=0, received=RESULT, reduce_op=1)
_functional_all_gather = Signature("all_gather", group=2, sent=0, received=RESULT, payload=RECEIVED)
_functional_reduce_scatter = Signature(
    "reduce_scatter", group=3, sent=0, received=RESULT, reduce_op=1
)
_functional_broadcast = Signature("broadcast", group=2, sent=0, received=RESULT, root=1)
_functional_all_to_all = Signature("all_to_all", group=3, sent=0, received=RESULT, split=2)
_gather_low = Signature("all_gather", group=1, sent=0, received=RESULT, payload=RECEIVED)
_all_to_all_by_device = Signature("all_to_all", group=4, sent=0, received=1)
# Fused with a matmul: the input is gathered, or the results of all ranks are reduced.
_gather_matmul = Signature("all_gather", group=3, sent=0, payload_per_rank=True)
_matmul_scatter = Signature(
    "reduce_scatter",
    group=4,
    received=RESULT,
    reduce_op=2,
    payload=RECEIVED,
    payload_per_rank=True,
)

SIGNATURES: dict[str, Signature] = {
    "c10d::allreduce_": _all_reduce,
    "c10d::allreduce_coalesced_": replace(_all_reduce, is_async=3),
    "c10d::allgather_": _gather_all,
    "c10d::_allgather_base_": _gather_all,
    "c10d::allgather_coalesced_": _gather_all,
    "c10d::allgather_into_tensor_coalesced_": _gather_all,
    "c10d::reduce_scatter_": _reduce_scatter,
    "c10d::_reduce_scatter_base_": _reduce_scatter,
    "c10d::reduce_scatter_tensor_coalesced_": _reduce_scatter,
    "c10d::alltoall_": Signature("all_to_all", group=2, sent=1, received=0, is_async=3),
    "c10d::alltoall_base_": Signature(
        "all_to_all", group=2, sent=1, received=0, split=4, is_async=5
    ),
    "c10d::broadcast_": Signature("broadcast", group=1, sent=0, received=0, root=2, is_async=4),
    "c10d::reduce_": Signature(
        "reduce", group=1, sent=0, received=0, reduce_op=2, root=3, is_async=5
    ),
    "c10d::gather_": Signature(
        "gather", group=2, sent=1, received=0, root=3, is_async=4, payload_per_rank=True
    ),
    "c10d::gather_into_tensor_": Signature(
        "gather", group=2, sent=1, received=0, root=3, is_async=4, payload_per_rank=True
    ),
    "c10d::scatter_": Signature(
        "scatter",
        group=2,
        sent=1,
        received=0,
        root=3,
        is_async=4,
        payload=RECEIVED,
        payload_per_rank=True,
    ),
    "c10d::send": Signature("send", group=1, sent=0, peer=2, tag=3),
    "c10d::recv_": Signature("recv", group=1, received=0, peer=2, tag=3, payload=RECEIVED),
    "c10d::recv_any_source_": Signature("recv", group=1, received=0, tag=2, payload=RECEIVED),
    "c10d::barrier": Signature("barrier", group=1, is_async=3),
    "c10d::monitored_barrier_": Signature("barrier", group=1, is_blocking=True),
    "_c10d_functional::all_reduce": _functional_all_reduce,
    "_c10d_functional::all_reduce_": _functional_all_reduce,
    "_c10d_functional::all_reduce_coalesced": _functional_all_reduce,
    "_c10d_functional::all_reduce_coalesced_": _functional_all_reduce,
    "_c10d_functional::all_gather_into_tensor": _functional_all_gather,
    "_c10d_functional::all_gather_into_tensor_out": _functional_all_gather,
    "_c10d_functional::all_gather_into_tensor_coalesced": _functional_all_gather,
    "_c10d_functional::reduce_scatter_tensor": _functional_reduce_scatter,
    "_c10d_functional::reduce_scatter_tensor_out": _functional_reduce_scatter,
    "_c10d_functional::reduce_scatter_tensor_coalesced": _functional_reduce_scatter,
    "_c10d_functional::all_to_all_single": _functional_all_to_all,
    "_c10d_functional::broadcast": _functional_broadcast,
    "_c10d_functional::broadcast_": _functional_broadcast,
    "_c10d_functional::isend": Signature("send", group=3, sent=0, peer=1, tag=2),
    "_c10d_functional::irecv": Signature(
        "recv", group=3, received=0, peer=1, tag=2, payload=RECEIVED
    ),
    "_c10d_functional_autograd::all_gather_into_tensor": _functional_all_gather,
    "_c10d_functional_autograd::all_to_all_single": _functional_all_to_all,
    "_c10d_functional_autograd::reduce_scatter_tensor": _functional_reduce_scatter,
    "_dtensor::shard_dim_alltoall": replace(_functional_all_to_all, split=None),
    "symm_mem::one_shot_all_reduce": _functional_all_reduce,
    "symm_mem::one_shot_all_reduce_out": _functional_all_reduce,
    "symm_mem::one_shot_all_reduce_copy": Signature(
        "all_reduce", group=3, sent=1, received=RESULT, reduce_op=2
    ),
    "symm_mem::one_shot_all_reduce_copy_out": Signature(
        "all_reduce", group=3, sent=1, received=RESULT, reduce_op=2
    ),
    "symm_mem::two_shot_all_reduce_": _functional_all_reduce,
    "symm_mem::two_shot_all_reduce_out": _functional_all_reduce,
    "symm_mem::multimem_all_reduce_": _functional_all_reduce,
    "symm_mem::multimem_one_shot_all_reduce": _functional_all_reduce,
    "symm_mem::multimem_one_shot_all_reduce_out": _functional_all_reduce,
    "symm_mem::multimem_one_shot_reduce_out": Signature(
        "reduce", group=3, sent=0, received=RESULT, reduce_op=1, root=2
    ),
    "symm_mem::tile_reduce": Signature("reduce", group=3, sent=0, received=1, reduce_op=4, root=2),
    "symm_mem::multi_root_tile_reduce": Signature(
        "reduce", group=3, sent=0, received=1, reduce_op=4
    ),
    "symm_mem::multimem_all_gather_out": _gather_low,
    "symm_mem::_low_contention_all_gather": _gather_low,
    "symm_mem::_low_contention_all_gather_ce_multicast": _gather_low,
    "symm_mem::_low_contention_all_gather_ce_multicast_out": _gather_low,
    "symm_mem::_low_contention_reduce_scatter": Signature(
        "reduce_scatter", group=2, sent=0, received=RESULT, reduce_op=1
    ),
    "symm_mem::reduce_scatter_out": Signature("reduce_scatter", group=1, sent=0, received=RESULT),
    "symm_mem::nccl_reduce_scatter_offset": Signature(
        "reduce_scatter", group=2, sent=0, received=1, reduce_op=6
    ),
    "symm_mem::nccl_all_to_all_nd": Signature("all_to_all", group=4, sent=0, received=1),
    "symm_mem::nvshmem_all_to_all": Signature("all_to_all", group=2, sent=0, received=1),
    "symm_mem::all_to_all_vdev": _all_to_all_by_device,
    "symm_mem::all_to_all_vdev_2d": _all_to_all_by_device,
    "symm_mem::all_to_all_vdev_2d_offset": _all_to_all_by_device,
    "symm_mem::nvshmem_broadcast": Signature("broadcast", group=2, sent=0, received=0, root=1),
    "symm_mem::fused_all_gather_matmul": _gather_matmul,
    "symm_mem::fused_all_gather_scaled_matmul": replace(_gather_matmul, group=5),
    "symm_mem::fused_matmul_reduce_scatter": _matmul_scatter,
    "symm_mem::fused_scaled_matmul_reduce_scatter": replace(_matmul_scatter, group=7, reduce_op=4),
}

WAIT = "_c10d_functional::wait_tensor"
WAIT_FOR_ALL = "_c10d_functional::wait_tensors"

BATCH = "_c10d_functional::batch_p2p_ops"

TRANSFERS = {
    "isend": Signature("send", group=1, sent=0, peer=2, tag=3),
    "irecv": Signature("recv", group=1, received=0, peer=2, tag=3, payload=RECEIVED),
}
"""Transfers of a batch, by their names in it: each receives its tensor, group, peer
and tag."""

_LEGACY = "calls the operator of that name in _c10d_functional, which is recorded"
_ONE_SIDED = "is a one-sided transfer of symmetric memory, without a process group"

SILENT = {
    "c10d::check_for_nan": "looks at a tensor of this rank and sends nothing",
    "_c10d_functional::_wrap_tensor_autograd": "wraps a tensor for autograd",
    WAIT: "waits for what another operator sent",
    WAIT_FOR_ALL: "waits for each of several results of another operator",
    BATCH: "is recorded as its transfers",
    "_dtensor::mesh_get_process_group": "looks a group up",
    "symm_mem::_rendezvous": "exchanges handles of symmetric memory",
    "symm_mem::get_remote_tensors": "makes views of symmetric memory of other ranks",
    "symm_mem::_async_input_mm": "multiplies the result of an all-gather that is recorded",
    "symm_mem::memset32_": "writes to a signal of this rank",
    "symm_mem::stream_write_value32_": "writes to a signal of this rank",
    "symm_mem::_barrier": _ONE_SIDED,
    "symm_mem::memcpy_to_multicast_": "a rank's part of an all-gather that is recorded",
    **{
        f"symm_mem::{library}_{name}": _ONE_SIDED
        for library, names in {
            "nccl": "get get_out put put_signal put_with_signal wait_for_signal wait_signal",
            "nvshmem": "get get_out put put_with_signal wait_for_signal",
        }.items()
        for name in names.split()
    },
    **{
        f"c10d_functional::{name}": _LEGACY
        for name in (
            "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce",
            "all_reduce_coalesced", "all_to_all_single", "batch_p2p_ops", "broadcast", "irecv",
            "isend", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "wait_tensor",
        )
    },
}  # fmt: skip
"""Operators of the same namespaces that are not recorded themselves, with the reason."""
