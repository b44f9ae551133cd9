"""Reasons for which communication was not hidden: what each means, and what to try.

`LOST` are reasons by which overlap was lost; calls of the other reasons lost none, as far as known.
"""

from __future__ import annotations

from dataclasses import dataclass

ISSUED_LATE = "issued_late"
PREFETCH_LATE = "prefetch_late"
BUCKET_ORDER = "bucket_order"
WAITED_AT_ONCE = "waited_at_once"
BLOCKED_BY_RECEIVE = "blocked_by_receive"
NOT_SPLIT = "not_split"
BUCKET_TOO_LARGE = "bucket_too_large"
BUCKET_TOO_SMALL = "bucket_too_small"
ONE_STREAM = "one_stream"
HIDDEN, LATE_RANK, DEPENDENT, UNKNOWN = "hidden", "late_rank", "dependent", "unknown"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason.

    Attributes:
        meaning: What the times of a call show, as documentation.
        clause: The same of calls in a sentence, with places for `early` and `slack`.
        advice: What to try.
    """

    meaning: str
    clause: str
    advice: str = ""


LOST: dict[str, Reason] = {
    ISSUED_LATE: Reason(
        "other operators ran between the operator that wrote the input and the issue",
        "whose input was ready {early} before they were issued",
        "Issue it with async_op=True as soon as its input is ready, and wait where the result is "
        "used; post a receive before the computation that precedes its use.",
    ),
    PREFETCH_LATE: Reason(
        "parameters were gathered only when they were needed, after other operators of the step",
        "of parameters that were ready {early} before they were issued",
        "Prefetch the next block's parameters: set_modules_to_forward_prefetch and "
        "set_modules_to_backward_prefetch of FSDP2, forward_prefetch=True of FSDP1. It holds the "
        "parameters of another block in memory.",
    ),
    BUCKET_ORDER: Reason(
        "a bucket of gradients was ready before an earlier bucket, for which it had to wait",
        "of buckets that were ready {early} before they were issued, behind an earlier bucket",
        "Register parameters in the order of their use, so that buckets fill in the order of the "
        "backward pass; without find_unused_parameters, DistributedDataParallel reorders them "
        "after the first step.",
    ),
    WAITED_AT_ONCE: Reason(
        "other operators ran between the end of the wait and the first use of the result",
        "whose result was used {slack} after the wait",
        "Use async_op=True, and wait where the result is used.",
    ),
    BLOCKED_BY_RECEIVE: Reason(
        "a receive was posted after another receive that blocked the rank, although its data had "
        "been sent",
        "that were posted after another receive, although their data had been sent",
        "Post receives together, with irecv or batch_isend_irecv, and wait for each where its "
        "data is used.",
    ),
    NOT_SPLIT: Reason(
        "a matrix product uses the gathered tensor, or made the scattered tensor, and both could "
        "be split",
        "next to the matrix product that depends on them",
        "Split both, so that each part is communicated beside the product of another part: async "
        "tensor parallelism (torch._inductor.config._micro_pipeline_tp) does so on GPUs.",
    ),
    BUCKET_TOO_LARGE: Reason(
        "a bucket of gradients waited for its last gradient, long after its first gradients",
        "of buckets that waited for their last gradient",
        "Make the buckets smaller (bucket_cap_mb of DistributedDataParallel, smaller units of "
        "FSDP), so that the reduction of the first gradients begins earlier.",
    ),
    BUCKET_TOO_SMALL: Reason(
        "one of many buckets of gradients in a step that are too small for the bandwidth",
        "of buckets that are too small for the bandwidth",
        "Make the buckets larger (bucket_cap_mb of DistributedDataParallel).",
    ),
    ONE_STREAM: Reason(
        "the device computes on the stream of the call, so the two cannot run at once",
        "on a stream that also computes",
        "Run it on a stream of its own (async_op=True does), if other work does not need its "
        "result.",
    ),
}

OTHERS: dict[str, Reason] = {
    LATE_RANK: Reason(
        "the rank was blocked by a late peer, for nine tenths of the time or more",
        "that waited for a late rank",
    ),
    DEPENDENT: Reason(
        "hardly anything else ran between the input and the first use of the result",
        "whose input was ready when they were issued, and whose result was used at once",
    ),
    HIDDEN: Reason("it did not block the rank", "that did not block the rank"),
    UNKNOWN: Reason("it is unknown when its data was ready and used", "of unknown dependencies"),
}
REASONS = LOST | OTHERS
