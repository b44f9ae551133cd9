"""Columns of every table in a trace: unit, type, meaning and first format version.

All names of columns come from here: the recorder's events, the trace file, the DataFrames of the
reader, and docs/trace-format.md. A duration is in `ns`. A point in time is in `unix ns`:
nanoseconds of the recording host's monotonic clock, shifted once at the start to count from the
Unix epoch, and aligned between ranks in a finished run (table `ranks`).

A table is a tuple of `Column`. A column's type is `int`, `float`, `bool` or `str`, and
`Column.missing` is its value for "not known" or "does not apply". Integers lie between `least` and
`most`. `UNIQUE`, `ORDERED` and `REFERENCES` relate columns to each other. A trace is validated
against all of this when it is read (`commtrace/tracefile/validate.py`).

The file exceeds the usual length, because it has the columns of all tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FORMAT_NAME = "commtrace"
FORMAT_VERSION = 14

INSTANT = "unix ns"
"""Unit of a point in time; `ns` is the unit of a duration."""

MOST_INSTANT_NS = (1 << 62) - 1
"""Last point in time, in the year 2116; the sum of two fits into 64 bits."""

MAX_RANKS = 1 << 18
"""Upper bound of rank numbers; a larger number in a file is damage, or no rank."""

_MOST = {INSTANT: MOST_INSTANT_NS, "ns": 1 << 58, "bytes": 1 << 58, "": MOST_INSTANT_NS}
"""Largest integers by unit: nine years, and a quarter of an exabyte per call."""

PHASES = ("forward", "backward", "recompute", "optimizer", "other")
"""Parts of a training step, in order."""

CATEGORIES = COMPUTE, COMMUNICATION, MEMCPY, MEMSET = (
    "compute", "communication", "memcpy", "memset",
)  # fmt: skip
"""Sorts of work on a device, in table `kernels`."""

ROLES = (
    INPUT, OUTPUT, OUTPUT_GRADIENT, RESULT, PARAMETER, BUFFER, LOSS, LOCAL_GRADIENT, UNCLIPPED,
    CLIPPING, GRADIENT, UPDATED, STATE, NAMED,
) = (
    "input", "output", "output_gradient", "result", "parameter", "buffer", "loss",
    "local_gradient", "unclipped", "clipping", "gradient", "updated", "state", "named",
)  # fmt: skip
"""Roles of tensors in table `fingerprints`.

Inputs and outputs of modules and the gradients of outputs; results of operators; parameters before
the first step, and buffers; scalars at which backward passes begin; gradients as the rank's own
backward pass has them, as clipping finds them, and as the optimizer does; the norms that clipping
uses; parameters and states as the optimizer leaves them; and tensors that the program names.
"""

HOST_EVENT_KINDS = (
    COMPILE, RECOMPILE, EXCEPTION, DATA_END, DATA_WAIT, GC_PAUSE, NOT_RUNNING, STUCK, NEW_GROUP,
    INIT_PROCESS_GROUP, DESTROY_PROCESS_GROUP, STORE, FATAL, EXIT, THREAD_DIED,
) = (
    "compile", "recompile", "exception", "data_end", "data_wait", "gc_pause", "not_running",
    "stuck", "new_group", "init_process_group", "destroy_process_group", "store", "fatal",
    "exit", "thread_died",
)  # fmt: skip
"""Kinds of events on the host, in table `host_events`.

Dynamo compiles a frame, or compiles it again; an exception passes a module or a collective, or is
caught by the program; an iterator of a data loader ends, or takes long; Python's garbage collector
takes long; no thread of Python ran, since the process was stopped or held Python's lock; a thread
is at a place while ranks wait; a process group is created; the default group is initialized, or
groups are destroyed; the program waits for a key of a store; an exception ends the rank; a call
of `sys.exit` or `os._exit` does; an exception ends a thread of it.
"""
WAITING_KINDS = frozenset((NEW_GROUP, STORE, INIT_PROCESS_GROUP, DESTROY_PROCESS_GROUP))
"""Kinds of events in which a rank may wait for others."""

PIPELINE_ACTIONS = (
    FORWARD, LOSS_OF_CHUNK, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT,
) = (
    "forward", "loss", "backward", "backward_input", "backward_weight",
)  # fmt: skip
"""Computations of a pipeline stage on a micro-batch, in table `pipeline_actions`.

The forward pass; the loss, on the last stage; and the backward pass, as a whole or, in zero-bubble
schedules, the gradients of inputs first and of weights later.
"""

SYNC_KINDS = (
    EVENT_RECORD, STREAM_WAIT, EVENT_SYNC, STREAM_SYNC, DEVICE_SYNC,
) = (
    "event_record", "stream_wait", "event_sync", "stream_sync", "device_sync",
)  # fmt: skip
"""Kinds of rows in table `syncs`.

The host records an event in a stream; lets a stream wait for an event; or waits itself for an
event, for a stream, or for all streams of a device.
"""

MEMBER_STATES = (
    RUNNING, INITIALIZING, FINALIZING, ABORTED, NO_MEMBER, UNRESPONSIVE, DEAD,
) = (
    "running", "initializing", "finalizing", "aborted", "no member", "unresponsive", "dead",
)  # fmt: skip
"""States of a member of a communicator, in table `communicators`.

It runs, is being created or destroyed, or was aborted; or its process answers without having the
communicator, does not answer, or is considered dead.
"""

MAX_ACTIONS = 20_000
"""Most rows of a rank in table `pipeline_actions`; later actions are not recorded."""

NUM_SKETCHES = 4
"""Number of random sketches of a tensor in table `fingerprints`."""

HARNESS = "harness"
"""Value of `carries` for communication of a known test harness around the body of a test."""
STREAM = "stream "
"""Beginning of the name that calls have as a group if only their stream is known."""
FAKE = "fake"
"""Backend of groups that send nothing; the process is the only rank of a fake world that exists."""
ALL_USED = "find_unused_parameters=True, and no parameter was unused"
SOME_UNUSED = "find_unused_parameters=True, and some parameters were unused"
"""Notes on calls that carry flags, if DistributedDataParallel has logged them."""
COPIED = "gradients are copied into the bucket (gradient_as_bucket_view=False)"
"""Note on buckets of DistributedDataParallel."""

MAY_BE_NEGATIVE = ("step",)
"""Integer columns in which -1 is a value; elsewhere it means unknown."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        unit: the unit; empty for names and counts.
        meaning: the description in docs/trace-format.md.
        since: format version that introduced it.
        least: smallest valid integer.
        most: largest valid integer; 0 selects the default of the unit.
    """

    name: str
    type: type
    unit: str
    meaning: str
    since: int = 1
    least: int = -1
    most: int = 0
    form: str = ""
    """Form of a string: a key of `FORMS`."""
    title: str = ""
    """Heading in tables for people; by default the name, in words."""
    long_title: str = ""
    """Title on axes, buttons and in captions; by default the heading."""
    minus: str = ""
    """Text for people of -1, where that is a value; empty where it means unknown."""

    def __post_init__(self) -> None:
        if not self.most:
            object.__setattr__(self, "most", 1 if self.type is bool else _MOST.get(self.unit, 1))

    @property
    def heading(self) -> str:
        """Heading in tables for people."""
        return self.title or self.name.replace("_", " ").capitalize()

    @property
    def long_heading(self) -> str:
        """Title where there is more space than in a table."""
        return self.long_title or self.heading

    @property
    def missing(self) -> int | float | bool | str:
        """Value for "not known": -1, nan, False or the empty string."""
        return {int: -1, float: float("nan"), bool: False, str: ""}[self.type]


def _where(subject: str, since: int = 1) -> tuple[Column, ...]:
    """Return the columns that locate an event in the program."""
    columns = (
        Column("step", int, "", f"step that {subject} belongs to, counted from 0 by `rec.step()`"),
        Column("phase", str, "", "forward, backward, recompute, optimizer or other", form="phase"),
        Column("region", str, "", "innermost user region, as given to `rec.region(name)`"),
        Column("module", str, "", "path of the innermost module, `layers.0.attention.wq`"),
        Column("module_class", str, "", "class name of that module", title="Class"),
        Column("module_call", int, "", "number of the module's call in this recording, from 0"),
        Column("thread", int, "", "native id of the thread"),
    )
    return tuple([replace(column, since=since) for column in columns])


def _rank(name: str, meaning: str, since: int = 1, *, least: int = -1) -> Column:
    return Column(name, int, "", meaning, since, least=least, most=MAX_RANKS - 1)


COMM = (
    _rank("rank", "global rank that made the call", least=0),
    Column(
        "id", int, "", "number of the call on its rank, in order of issue, from 0",
        title="Call",
    ),
    Column("kind", str, "", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ..."),
    Column("native_op", str, "", "operator that was intercepted, `c10d::allreduce_`"),
    Column("group", str, "", "name of the process group; key of table `groups`"),
    Column("seq", int, "", "number of the call within its group on this rank, from 0"),
    Column("reduce_op", str, "", "sum, avg, min, max, product, ..."),
    _rank("root", "global rank of the root of a rooted collective"),
    _rank("peer", "global rank of the other side of a point-to-point call"),
    Column("dtype", str, "", "element type of the payload, `float32`"),
    Column(
        "input_shapes", str, "", "shapes of the tensors sent, `[8,16]`, joined by `;`",
        form="shapes",
    ),
    Column("output_shapes", str, "", "shapes of the tensors received, likewise", form="shapes"),
    Column(
        "payload_bytes", int, "bytes", "size by which bandwidth is counted (docs/bytes.md)",
        title="Payload",
    ),
    Column(
        "wire_bytes", int, "bytes", "bytes that this rank must send under the ring algorithm",
        title="Sent",
    ),
    Column("is_async", bool, "", "the call returned before completion"),
    Column("issue_ns", int, INSTANT, "when the call was issued"),
    Column("call_ns", int, "ns", "time inside the issuing call"),
    Column(
        "blocked_ns", int, "ns", "time the rank was blocked: in the call or in its waits",
        title="Blocked",
    ),
    Column("complete_ns", int, INSTANT, "time of completion"),
    *_where("the call"),
    Column("op", str, "", "operator that needed it, `aten.mm.default`", title="Operator"),
    Column("op_id", int, "", "id of the enclosing operator in table `ops`, on the same rank"),
    Column("source_file", str, "", "file of the user's line", title="Source"),
    Column("source_line", int, "", "line in that file"),
    Column("source_function", str, "", "function that the line is in", title="Function"),
    Column("reason", str, "", "reason of the call, in a sentence"),
    Column("argument", str, "", "argument of `op` that had to change its layout"),
    Column("source_spec", str, "", "layout before, `f32[8,16] tp:P(sum)`"),
    Column("target_spec", str, "", "layout after, `f32[8,16] tp:R`"),
    Column(
        "candidates", str, "", "layouts considered with their cost in seconds, as JSON",
        form="candidates",
    ),
    Column("planned_bytes", int, "bytes", "payload that the planner announced for this call"),
    Column(
        "carries", str, "",
        f"parameters, gradients, flags, activations, objects (pickled) or {HARNESS}", 2,
    ),
    Column("parameters", str, "", "names of the parameters sent, separated by `,`", 2),
    Column("stack", str, "", "Python stack, if recorded with stacks=True; innermost frame last", 2),
    Column("sent_id", int, "", "equal numbers on a rank mean the same tensors, unchanged", 3),
    Column("device", str, "", "device that ran the call, `cuda:1`", 4),
    Column("stream", int, "", "stream of the device, by its runtime's number", 4),
    Column("algorithm", str, "", "algorithm of the kernel, `RING`, as its library names it", 4),
    Column("protocol", str, "", "protocol of the kernel, `LL128`, as its library names it", 4),
    Column("channels", int, "", "channels of the kernel, one thread block each", 4),
    Column(
        "input_splits", str, "",
        "bytes of an all-to-all to each member, in group order, `96,0,32`; "
        "empty if equal or unknown",
        4, form="splits",
    ),
    Column("output_splits", str, "", "bytes from each member, likewise", 4, form="splits"),
    Column(
        "data_ready_ns", int, INSTANT,
        "end of the operator or the collective that last wrote to the tensors sent", 7,
    ),
    Column("result_used_ns", int, INSTANT, "start of the first operator that used the result", 7),
    Column(
        "expert_rows", str, "",
        "rows of an all-to-all to each expert of the group, in order of experts, `3,0,5`; "
        "empty if the program does not state them",
        7, form="splits",
    ),
    Column("stage", int, "", "pipeline stage that the call belongs to", 7),
    Column("micro_batch", int, "", "number of its micro-batch, from 0", 7),
    Column(
        "direction", str, "", "forward or backward: the pass of the pipeline that it belongs to", 7,
        form="direction",
    ),
    Column(
        "device_ns", int, "ns", "time for which a device ran the call", 7, title="On the device",
    ),
    Column(
        "used_shard", int, "",
        "0 if operators used all of the result; 1 + d if only the rank's own shard along dim d", 9,
    ),
    Column(
        "run_delay_ns", int, "ns",
        "time since the preceding call of its thread for which the thread was ready to run but had "
        "no core", 9, title="Without a core",
    ),
    Column(
        "cast_dtype", str, "",
        "type of 16 bits that the float32 tensors sent were cast from right before, or that the "
        "result was cast to", 10, title="Cast",
    ),
    Column("tag", int, "", "tag of a send or a receive", 11),
    Column(
        "callers", str, "",
        "frames of the user's code around that line, `file:line function`; outermost frame first",
        11,
    ),
    Column(
        "wait_begin_ns", int, INSTANT,
        "when the first wait for the call began, if it is asynchronous; others are rows of "
        "`later_waits`", 13,
    ),
    Column(
        "first_wait_ns", int, "ns",
        "duration of that wait, also if it timed out; unknown if it was still in progress", 13,
    ),
    Column("wait_thread", int, "", "native id of the thread that waited", 13),
    Column(
        "data_op_id", int, "",
        "id of the operator that last wrote to the tensors sent; known at detail `op`, as are the "
        "next three", 13,
    ),
    Column(
        "data_call_id", int, "",
        "id of the call that did, or of the last call whose result reached them by operators that "
        "have details (`ops.needs`)", 13,
    ),
    Column("used_by_op_id", int, "", "id of the first operator that used the result", 13),
    Column("used_by_call_id", int, "", "id of the first call that sent the result", 13),
    Column(
        "via", str, "",
        "nearest frame of an installed package between the user's line and the call, "
        "`package/file.py:line function`; empty if there is none", 14, title="Via",
    ),
)  # fmt: skip

OPS = (
    _rank("rank", "global rank", least=0),
    Column("id", int, "", "number of the operator on its rank, in order of start, from 0"),
    Column("parent", int, "", "id of the enclosing operator"),
    Column("op", str, "", "operator, `aten.mm.default`", title="Operator"),
    Column(
        "level", str, "", "dtensor (on distributed tensors) or local (on plain tensors)",
        form="level",
    ),
    Column("start_ns", int, INSTANT, "when it started"),
    Column("duration_ns", int, "ns", "duration on the host, including inner operators"),
    *_where("the operator"),
    Column(
        "needs", str, "",
        "operators and calls that last wrote what it used, as ids that are lower by `1` or "
        "`c0,c3`: `c` counts back from the rank's latest call, which is `c0`; empty if nothing "
        "recorded wrote it. This and the next three, its details, are recorded in the first two "
        "steps and each hundredth, except for views and at level dtensor: where `bytes` is known",
        13, form="needs",
    ),
    Column(
        "shapes", str, "",
        "shapes of its tensor arguments, joined by `;`",
        13, form="shapes",
    ),
    Column(
        "flops", int, "",
        "floating-point operations by its shapes; only products of matrices, convolutions and "
        "attention have a formula, and other operators are unknown",
        13, most=1 << 62,
    ),
    Column(
        "bytes", int, "bytes",
        "bytes of its tensor arguments and of the tensors it returns, each counted once for "
        "either",
        13,
    ),
)  # fmt: skip

KERNELS = (
    _rank("rank", "global rank", 4, least=0),
    Column("id", int, "", "number of the kernel on its rank, in order of start, from 0", 4),
    Column(
        "category", str, "", f"sort of work: {', '.join(CATEGORIES[:-1])} or {CATEGORIES[-1]}", 4,
        form="category",
    ),
    Column("name", str, "", "name of the kernel or the copy", 4, title="Kernel"),
    Column("device", str, "", "device that ran it, `cuda:1`", 4),
    Column("stream", int, "", "stream of the device, by its runtime's number", 4),
    Column("start_ns", int, INSTANT, "when it started on the device", 4),
    Column("duration_ns", int, "ns", "duration on the device", 4),
    Column("launch_ns", int, INSTANT, "when the host began to launch it", 4),
    Column("call_id", int, "", "id of its call in table `comm`, on the same rank", 4),
    Column("op_id", int, "", "id of its operator in table `ops`, on the same rank", 13),
    Column("op", str, "", "operator that launched it, `aten.mm`", 13, title="Operator"),
    Column("thread", int, "", "native id of the thread that launched it", 13),
)  # fmt: skip

FINGERPRINTS = (
    _rank("rank", "global rank that held the tensor, or its local part", 6, least=0),
    Column("id", int, "", "number of the row on its rank, in order of time, from 0", 6),
    Column("role", str, "", f"{', '.join(ROLES[:-1])} or {ROLES[-1]}", 6, form="role"),
    Column(
        "name", str, "", "name of the parameter, or place of the tensor among the module's outputs",
        6,
    ),
    Column("op", str, "", "operator, `aten.mm.default`, of a result", 6, title="Operator"),
    Column("at_ns", int, INSTANT, "when it was computed", 6),
    *_where("the tensor", 6),
    Column("source_file", str, "", "file of the user's line, of a result", 6, title="Source"),
    Column("source_line", int, "", "line in that file", 6),
    Column("source_function", str, "", "function that the line is in", 6, title="Function"),
    Column("dtype", str, "", "element type, `float32`", 6),
    Column("shape", str, "", "shape of the global tensor, `[8,16]`", 6, form="shapes"),
    Column("mesh", str, "", "sizes of mesh axes and ranks in order, `dp=2,tp=2:0,1,2,3`", 6),
    Column(
        "placements", str, "",
        "placement on each axis, `R,S(1)`, `S(flat)` of a range of elements; empty if unknown", 6,
    ),
    *(
        Column(f"sketch_{number}", float, "", f"random sketch {number} of the rank's part", 6)
        for number in range(NUM_SKETCHES)
    ),
    Column("total", float, "", "sum of the finite elements of the rank's part", 6),
    Column("norm", float, "", "Euclidean norm of the finite elements of the rank's part", 6),
    Column("largest", float, "", "largest magnitude of a finite element of the rank's part", 6),
    Column("num_nan", int, "", "elements that are not a number", 6),
    Column("num_inf", int, "", "infinite elements", 6),
    Column(
        "inputs", str, "",
        "how many rows earlier on the rank the observed tensors are that it was computed from, "
        "`1,3`: by storage at level `op`, else by autograd's graph", 12,
    ),
)  # fmt: skip

HOST_EVENTS = (
    _rank("rank", "global rank that it happened on", 7, least=0),
    Column("id", int, "", "number of the event on its rank, from 0", 7),
    Column(
        "kind", str, "", f"{', '.join(HOST_EVENT_KINDS[:-1])} or {HOST_EVENT_KINDS[-1]}", 7,
        form="host_event",
    ),
    Column("at_ns", int, INSTANT, "when it began", 7),
    Column(
        "duration_ns", int, "ns",
        "how long it took; unknown if it was still in progress when the row was written; another "
        "row is written at its end", 7,
    ),
    Column("step", int, "", "step that was in progress, as in table `comm`", 7),
    Column("thread", int, "", "native id of the thread", 7),
    Column(
        "text", str, "",
        "the guard that failed, the exception, the number of batches, the group that is created, "
        "the key that is waited for, or the name of the thread that is stuck", 7,
        title="Event",
    ),
    Column("source_file", str, "", "file of the user's line", 7, title="Source"),
    Column("source_line", int, "", "line in that file", 7),
    Column("source_function", str, "", "function that the line is in", 7, title="Function"),
    Column(
        "stack", str, "",
        "Python stack of a thread that is stuck, or user's frames of an exit, of a new group, or "
        "of a wait for the store; innermost last", 11,
    ),
)  # fmt: skip

ACTIONS = (
    _rank("rank", "global rank of the stage", 7, least=0),
    Column("id", int, "", "number of the action on its rank, in order of end, from 0", 7),
    Column("stage", int, "", "number of the pipeline stage, from 0", 7),
    Column("micro_batch", int, "", "number of the micro-batch, from 0", 7),
    Column(
        "action", str, "", f"{', '.join(PIPELINE_ACTIONS[:-1])} or {PIPELINE_ACTIONS[-1]}", 7,
        form="action",
    ),
    Column("start_ns", int, INSTANT, "when it began", 7),
    Column("duration_ns", int, "ns", "how long it took", 7),
    Column("step", int, "", "step that was in progress, as in table `comm`", 7),
)  # fmt: skip

LATER_WAITS = (
    _rank("rank", "global rank that waited", 13, least=0),
    Column("id", int, "", "number of the wait on its rank, from 0", 13),
    Column("call_id", int, "", "id of the call in table `comm`, on the same rank", 13),
    Column("at_ns", int, INSTANT, "when the wait began", 13),
    Column("duration_ns", int, "ns", "how long it took", 13),
    Column("thread", int, "", "native id of the thread that waited", 13),
)

SYNCS = (
    _rank("rank", "global rank", 13, least=0),
    Column("id", int, "", "number of the row on its rank, in order of begin, from 0", 13),
    Column("kind", str, "", f"{', '.join(SYNC_KINDS[:-1])} or {SYNC_KINDS[-1]}", 13,
           form="sync_kind"),
    Column("at_ns", int, INSTANT, "when the host began the call", 13),
    Column("duration_ns", int, "ns", "duration of the call on the host", 13),
    Column("thread", int, "", "native id of the thread", 13),
    Column("device", str, "", "device, `cuda:1`", 13),
    Column("stream", int, "", "stream that the event is recorded in, or that waits", 13),
    Column(
        "kernel_id", int, "",
        "id of the last kernel that is waited for, or before a recorded event, in table `kernels`",
        13,
    ),
)  # fmt: skip

COMMUNICATORS = (
    _rank("rank", "global rank of the member", 7, least=0),
    Column("group", str, "", "name of the communicator; key of table `groups`", 7),
    Column("at_ns", int, INSTANT, "when its state was collected", 7),
    Column("state", str, "", f"{', '.join(MEMBER_STATES[:-1])} or {MEMBER_STATES[-1]}", 7,
           form="member_state"),
    Column("error", int, "", "code of the library's error; 0 if none", 7),
    Column("kind", str, "", "kind of the calls that are counted; empty if none are", 7),
    Column("num_calls", int, "", "calls of that kind that the rank has launched", 7, title="Calls"),
    Column("num_enqueued", int, "", "collectives that the rank has issued", 8, title="Issued"),
    Column("num_started", int, "", "collectives that its device has started", 8, title="Started"),
    Column("num_completed", int, "", "collectives that have completed", 8, title="Completed"),
)  # fmt: skip

REMOVED_CALLS = (
    _rank("rank", "global rank", 7, least=0),
    Column("group", str, "", "name of the process group", 7),
    Column("num_calls", int, "", "collectives of the group that the ring has replaced", 7),
    Column("end", int, "", "number in the group that follows the last of them", 7),
    Column("hash", int, "", "sum of hashes of their numbers and places", 7),
)

GROUPS = (
    Column("name", str, "", "name of the process group"),
    Column("description", str, "", "description that its creator gave"),
    Column("ranks", str, "", "global ranks, in group order, `0,1,2,3`", form="ranks"),
    Column("size", int, "", "number of ranks", most=MAX_RANKS),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("backend", str, "", "gloo, nccl, fake, ..."),
)

RANKS = (
    _rank("rank", "global rank", least=0),
    Column("host", str, "", "host name"),
    Column("pid", int, "", "process id"),
    Column("device", str, "", "device type the rank computed on"),
    Column("start_ns", int, INSTANT, "when recording began"),
    Column("end_ns", int, INSTANT, "end of the recording, or the last event of a truncated spool"),
    Column(
        "clock_offset_ns", int, "ns", "offset added to the rank's times by clock alignment",
        least=-MOST_INSTANT_NS, most=MOST_INSTANT_NS,
    ),
    Column("num_events", int, "", "communication calls kept"),
    Column("num_dropped", int, "", "communication calls dropped by the limits of the recording"),
    Column("complete", bool, "", "the rank closed its recording properly"),
    Column("num_ops_dropped", int, "", "operators dropped by the limits of the recording"),
    Column(
        "clock_error_ns", int, "ns", "bound on the alignment error; 0 if ranks share a clock", 2,
        most=MOST_INSTANT_NS,
    ),
    Column("boot", str, "", "identity of the running system, whose ranks share a clock", 5),
    Column(
        "epoch_ns", int, "ns", "offset from that system's monotonic clock to the rank's own times",
        5, most=MOST_INSTANT_NS,
    ),
    Column(
        "num_fingerprints_dropped", int, "",
        "rows of table `fingerprints` dropped by the limits of the recording", 6,
    ),
    Column(
        "alive_ns", int, INSTANT,
        "last time at which the rank is known to have run, while it recorded nothing new", 7,
    ),
    Column(
        "exit_code", int, "",
        "exit code of the process if it ended by itself, -n if signal n ended it (129 for signal "
        "1); unknown if it was stopped because another rank had failed", 11, least=-64,
    ),
)  # fmt: skip

STEPS = (
    _rank("rank", "global rank", least=0),
    Column("step", int, "", "number of the step, from 0", least=0),
    Column("start_ns", int, INSTANT, "when it began"),
    Column("end_ns", int, INSTANT, "when it ended"),
)

SOURCES = (
    Column("file", str, "", "source file, named as in `source_file` of table `comm`", 3),
    Column("line", int, "", "number of the first line, from 1", 3),
    Column("text", str, "", "source of the functions that communicate, separated by `\\n`", 3),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "comm": COMM,
    "ops": OPS,
    "kernels": KERNELS,
    "fingerprints": FINGERPRINTS,
    "host_events": HOST_EVENTS,
    "pipeline_actions": ACTIONS,
    "later_waits": LATER_WAITS,
    "syncs": SYNCS,
    "communicators": COMMUNICATORS,
    "removed_calls": REMOVED_CALLS,
    "groups": GROUPS,
    "ranks": RANKS,
    "steps": STEPS,
    "sources": SOURCES,
}

EVENT_TABLES = ("comm", "ops", "kernels", "fingerprints", "syncs")
"""Tables with rows of what happened on each rank, many of them."""

_SHAPE = r"\[(?:\d{1,18}(?:,\d{1,18})*)?\]"

FORMS: dict[str, str] = {
    "phase": rf"(?:{'|'.join(PHASES)})?",
    "level": r"(?:dtensor|local)?",
    "category": rf"(?:{'|'.join(CATEGORIES)})?",
    "role": rf"(?:{'|'.join(ROLES)})?",
    "action": rf"(?:{'|'.join(PIPELINE_ACTIONS)})?",
    "direction": r"(?:forward|backward)?",
    "host_event": rf"(?:{'|'.join(HOST_EVENT_KINDS)})?",
    "needs": r"(?:c?\d{1,18}(?:,c?\d{1,18})*)?",
    "sync_kind": rf"(?:{'|'.join(SYNC_KINDS)})?",
    "member_state": rf"(?:{'|'.join(MEMBER_STATES)})?",
    "splits": r"(?:\d{1,18}(?:,\d{1,18})*)?",
    "shapes": rf"(?:{_SHAPE}(?:;{_SHAPE})*)?",
    "ranks": r"(?:\d{1,9}(?:,\d{1,9})*)?",
    "candidates": r"(?:\[.*\])?",
}
"""Regular expressions of strings that are parsed: phases, shapes, ranks, layouts as JSON."""

UNIQUE: dict[str, tuple[str, ...]] = {
    "comm": ("rank", "id"),
    "ops": ("rank", "id"),
    "kernels": ("rank", "id"),
    "fingerprints": ("rank", "id"),
    "host_events": ("rank", "id"),
    "pipeline_actions": ("rank", "id"),
    "later_waits": ("rank", "id"),
    "syncs": ("rank", "id"),
    "communicators": ("rank", "group", "at_ns", "kind"),
    "removed_calls": ("rank", "group"),
    "groups": ("name",),
    "ranks": ("rank",),
    "steps": ("rank", "step"),
    "sources": ("file", "line"),
}
"""Columns that identify a row of a table, if all of them are known."""

ORDERED: tuple[tuple[str, str, str], ...] = (
    ("comm", "issue_ns", "complete_ns"),
    ("comm", "data_ready_ns", "issue_ns"),
    ("comm", "issue_ns", "result_used_ns"),
    ("comm", "issue_ns", "wait_begin_ns"),
    ("comm", "data_call_id", "id"),
    ("ranks", "start_ns", "end_ns"),
    ("steps", "start_ns", "end_ns"),
    ("ops", "parent", "id"),
)
"""Table and two columns; the first is not above the second if both are known."""

REFERENCES: tuple[tuple[str, str, str, str], ...] = (
    ("comm", "group", "groups", "name"),
    ("communicators", "group", "groups", "name"),
    ("removed_calls", "group", "groups", "name"),
)
"""Table and column whose known values must occur in another table's column."""
