"""Changes that may pay off in any run, whatever its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commtrace.analyze.findings.pipelines import even_stages
from commtrace.analyze.replay.changes import Change, parsed, separate
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.waits.stragglers import stragglers
from commtrace.units import text_of_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A change that may pay off.

    Attributes:
        title: The change, in a few words.
        how: A way to make it.
        changes: The changes to replay.
        is_limit: True if a change of the program saves at most as much: memory, buffers or the
            network may not allow it.
    """

    title: str
    how: str
    changes: tuple[Change, ...]
    is_limit: bool = False


def suggestions(basis: Frames) -> list[Proposal]:
    """Return the changes that apply to any run, of a run or of the part of it that is replayed."""
    return [each for make in _GENERAL for each in make(basis)]


def _balanced(run: Frames) -> Iterator[Proposal]:
    yield Proposal(
        "no stragglers",
        "give each rank equal work before its collectives; `commtrace table RUN stragglers` names "
        "the ranks and what delays them",
        (parsed("balance"),),
    )


def _ideal(run: Frames) -> Iterator[Proposal]:
    yield Proposal(
        "ideal network: transfers take no time",
        "a limit: no faster network and no other algorithm saves more",
        (parsed("shrink *0"),),
        is_limit=True,
    )


def _hidden(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    is_known = (comm["result_used_ns"] >= 0) | (comm["data_ready_ns"] >= 0)
    if is_known.any() or (run.kernels["call_id"] >= 0).any():
        yield Proposal(
            "all communication hidden up to its data's next use",
            "issue collectives with async_op=True once their data is ready, and wait before the "
            "first use; FSDP2: set_modules_to_forward_prefetch; DDP: smaller buckets",
            (parsed("overlap"),),
            is_limit=True,
        )


def _merged(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        if ((comm["kind"] == kind) & (comm["step"] >= 0)).sum() > run.num_ranks:
            yield Proposal(
                f"consecutive {kind} calls merged",
                "coalesce them: torch.distributed._coalescing_manager, larger DDP buckets, or one "
                "flat tensor",
                (parsed(f"merge where kind={kind}"),),
            )


def _larger_buckets(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    for carries, how in (
        ("gradients", "DDP: twice the bucket_cap_mb; FSDP2: fully_shard on larger modules"),
        ("parameters", "FSDP2: fully_shard on larger modules"),
    ):
        if ((comm["carries"] == carries) & (comm["step"] >= 0)).sum() > run.num_ranks:
            yield Proposal(
                f"buckets of {carries} twice as large",
                how,
                (parsed(f"merge 2 where carries={carries}"),),
            )


_OF_TOKENS = ("layer_norm", "rms_norm", "dropout")
"""Operators on whole activations in tensor parallelism, whose parts need no communication."""


def _sequence_parallel(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    reduces = (comm["kind"] == "all_reduce") & (comm["phase"] == "forward") & (comm["module"] != "")
    names = [name for name in _OF_TOKENS if run.ops["op"].str.contains(name).any()]
    sizes = run.groups.set_index("name")["size"]
    axes = mesh_axes(run, comm["group"][reduces]).astype(object)
    for axis in sorted(set(axes) - {""}) if names else ():
        size = int(sizes.reindex(comm["group"][reduces][axes == axis].unique()).max())
        yield Proposal(
            f"sequence parallelism on axis {axis}: norms and dropouts of a part of the tokens",
            "SequenceParallel() for norms in the plan of parallelize_module: a reduce-scatter and "
            "an all-gather, of the same bytes, in place of each all-reduce",
            tuple([parsed(f"compute /{size} where op~{name}") for name in names]),
            is_limit=True,
        )


def _in_16_bits(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    own = (comm["dtype"] == "float32") & (comm["payload_bytes"] > 0)
    if own.any():
        yield Proposal(
            "float32 messages in 16 bits",
            "FSDP2: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16); DDP: bf16_compress_hook; "
            "the results are rounded",
            (parsed("payload *0.5 where dtype=float32"),),
        )


def _faster_links(run: Frames) -> Iterator[Proposal]:
    axes = mesh_axes(run, run.comm["group"]).astype(object)
    for axis in sorted(set(axes) - {""}):
        yield Proposal(
            f"twice the bandwidth of axis {axis}",
            f"place the ranks of axis {axis} on faster links: order the mesh so that the axis is "
            "within a node",
            (parsed(f"bandwidth *2 where mesh_axis={axis}"),),
        )


def _earlier(run: Frames) -> Iterator[Proposal]:
    comm = run.comm
    for kind in ("all_gather", "reduce_scatter", "recv"):
        if ((comm["kind"] == kind) & (comm["data_ready_ns"] >= 0)).any():
            yield Proposal(
                f"{kind} issued as soon as its data is ready",
                "prefetch: FSDP2's set_modules_to_forward_prefetch and "
                "set_modules_to_backward_prefetch, or isend and irecv before the computation",
                (parsed(f"earlier where kind={kind}"),),
                is_limit=True,
            )


def _slow_ranks(run: Frames) -> Iterator[Proposal]:
    table = stragglers(run)
    if len(table):
        rank = int(table["rank"].iloc[0])
        yield Proposal(
            f"{text_of_ranks([rank])} no slower than its peers",
            "find what delays it: `commtrace table RUN stragglers`",
            (parsed(f"balance where rank={rank}"),),
        )


def _larger_batch(run: Frames) -> Iterator[Proposal]:
    if (run.comm["carries"].isin(["gradients", "parameters"])).any() and len(run.timed_steps):
        yield Proposal(
            "twice the samples in a micro-batch",
            "twice the batch size, if memory allows, or gradient accumulation with no_sync(); the "
            "time is for as many samples as before",
            (parsed("batch *2"),),
            is_limit=True,
        )


def _even_stages(run: Frames) -> Iterator[Proposal]:
    if cure := even_stages(run):
        yield Proposal(
            "layers moved until all pipeline stages compute for equally long",
            "split the model at other layers; `commtrace table RUN pipeline_stages` has the "
            "work of each",
            tuple(map(parsed, separate(cure))),
        )


_GENERAL: tuple[Callable[[Frames], Iterator[Proposal]], ...] = (
    _balanced, _slow_ranks, _even_stages, _hidden, _earlier, _merged, _larger_buckets,
    _sequence_parallel, _in_16_bits, _larger_batch, _faster_links, _ideal,
)  # fmt: skip
