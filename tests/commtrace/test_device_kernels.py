"""Communication kernels, recognized by name."""

from __future__ import annotations

import pytest

from commtrace.device_kernels import KERNELS, UNKNOWN, recognizer

GATHER = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
EXCHANGE = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


@pytest.mark.parametrize(
    ("name", "kind", "algorithm", "protocol", "reduce_op"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "all_reduce", "RING", "LL", "sum"),
        ("ncclKernel_AllReduce_TREE_LL128_Max_half(ncclDevComm*)",
         "all_reduce", "TREE", "LL128", "max"),
        ("ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE_SIMPLE(x)",
         "all_reduce", "NVLS_TREE", "SIMPLE", "sum"),
        ("ncclDevKernel_ReduceScatter_SumPostDiv_f32_RING_LL(x)",
         "reduce_scatter", "RING", "LL", "avg"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast", "RING", "LL", ""),
        ("ncclDevKernel_Reduce_Prod_f32_RING_LL(x)", "reduce", "RING", "LL", "product"),
        (GATHER, "all_gather", "RING", "LL", ""),
        (EXCHANGE, UNKNOWN, "RING", "SIMPLE", ""),
        ("ncclDevKernel_SendRecv(x)", UNKNOWN, "", "", ""),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", UNKNOWN, "", "", ""),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e4m3(x)", "all_reduce", "AGxLL_R", "", "sum"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(x)",
         "all_reduce", "RSxLDMC_AGxSTMC", "", "sum"),
        ("ncclSymkDevKernel_AllGather_STMC(x)", "all_gather", "STMC", "", ""),
        ("void mscclKernel_Sum_float_Simple_false<x>", UNKNOWN, "", "", ""),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)",
         "all_reduce", "", "", ""),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 4>(x)",
         "all_reduce", "", "", ""),
        ("void (anonymous namespace)::multimem_all_gather_kernel<8>(x)", "all_gather", "", "", ""),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
         "all_reduce", "", "", ""),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<x>", "all_reduce", "", "", ""),
        ("void flashinfer::allreduce_fusion_kernel_oneshot_lamport<x>", "all_reduce", "", "", ""),
        ("kuserbuffers_pushrecv<x>", "recv", "", "", ""),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>", "reduce_scatter", "", "", "sum"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all", "", "", ""),
    ],
)  # fmt: skip
def test_a_name_states_kind_algorithm_protocol_and_reduction(
    name: str, kind: str, algorithm: str, protocol: str, reduce_op: str
) -> None:
    found = recognizer()(name)
    assert found is not None
    assert (found.kind, found.algorithm) == (kind, algorithm)
    assert (found.protocol, found.reduce_op) == (protocol, reduce_op)
    assert found.pattern in KERNELS


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
        "triton_red_fused_all_reduce_mean_0",
        "void deep_ep::layout::get_dispatch_layout<256>(x)",
        "void gatherTopK<float, unsigned int>(x)",
    ],
)
def test_kernels_that_compute_are_not_communication(name: str) -> None:
    assert recognizer()(name) is None
