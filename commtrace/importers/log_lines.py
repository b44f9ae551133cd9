"""Lines about communication in the text that ranks print: of torch's watchdog, and of NCCL.

    [rank3]:[E816 01:45:40.212 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective
        operation timeout: WorkNCCL(SeqNum=78, OpType=ALLREDUCE, NumelIn=8, NumelOut=8,
        Timeout(ms)=600000) ran for 600013 milliseconds before timing out.
    [rank3]:[E816 ...] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception (either an error or
        timeout) detected by watchdog at work: 78, last enqueued NCCL work: 79,
        last completed NCCL work: 77.
    node0:4711:4720 [3] NCCL INFO AllReduce: opCount 4e sendbuff 0x7f02 recvbuff 0x7f02 count 8
        datatype 7 op 0 root 0 comm 0x55d0 [nranks=8] stream 0x55c0 task 0 globalrank 3
    node0:4711:4720 [3] NCCL INFO ncclCommInitRank comm 0x55d0 rank 3 nranks 8 cudaDev 3
        nvmlDev 3 busId 1b000 commId 0x9c1e - Init COMPLETE

They are found by their fixed words anywhere in the text, in order, since lines of several ranks,
progress bars and other output share it. Each pattern begins with such words and is bounded, so that
a search takes time in proportion to the text. Nothing is interpreted here: `logs.watchdog`
and `logs.nccl` make calls of the lines.
Source: ProcessGroupNCCL.cpp of torch 1.8 to 2.13; enqueue.cc and init.cc of NCCL 2.4 to 2.28.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from commtrace.schema import MAX_RANKS
from commtrace.torch_names import NOT_KNOWN

_NUMBER = r"(\d{1,18})(?!\d)"
_STATUSES = re.compile(
    r"[Ll]ast enqueued (?:[A-Z]{2,8} )?work: (-?\d{1,18})(?!\d), "
    r"(?:last started (?:[A-Z]{2,8} )?work: (-?\d{1,18})(?!\d), )?"
    r"last completed (?:[A-Z]{2,8} )?work: (-?\d{1,18})(?!\d)"
)
_CALLS = re.compile(
    r"(?:NCCL|RCCL) INFO ([A-Za-z]{2,24}): opCount ([0-9a-f]{1,15}) sendbuff \S{1,20} "
    r"recvbuff \S{1,20}(?: acc \S{1,20})? count (\d{1,18}) datatype (\d{1,3}) op (\d{1,20}) "
    r"root (-?\d{1,9}) comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,9})\] stream \S{1,20}"
    r"(?: task \d{1,18} globalrank (\d{1,9})(?!\d))?"
)
_INITS = re.compile(
    r"(?:NCCL|RCCL) INFO (?:\w{1,40} )?comm (0x[0-9a-f]{1,16}) rank (\d{1,9}) "
    r"n[rR]anks (\d{1,9}) ([^\n]{0,300})"
)
_FOUND = re.compile(r"Work[A-Z]{2,8}\((?=SeqNum=|OpType=)|[Ll]ast enqueued |(?:NCCL|RCCL) INFO ")

_FIELD = re.compile(r"(SeqNum|OpType|NumelIn|NumelOut|Timeout\(ms\))=([A-Za-z_0-9]{1,64})")
_RAN_FOR = re.compile(rf" ran for {_NUMBER} milliseconds")
_END_OF_FIELDS = re.compile(r"Timeout\(ms\)=\d{1,18}\)")
_AT_WORK = re.compile(rf"at (?:[A-Z]{{2,8}} )?work(?: sequence id)?: {_NUMBER}")
_LABEL = re.compile(
    r"\[(?:PG ?(?:ID (\d{1,9}) ?PG )?(?:GUID )?([^\s()\[\]]{1,200}) ?(?:\(([^()\[\]]{0,200})\) )?)?"
    r"Rank (\d{1,9})\]"
)
_TIME = re.compile(r"\[[A-Z](\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?) ")
_GLOBAL_RANK = re.compile(r"\[rank ?(\d{1,9})\]:?")
_PROCESS = re.compile(r"([^\s:\[\]]{1,100}):(\d{1,9}):\d{1,9} \[\d{1,4}\] $")
_COMMUNICATOR_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_SPLIT = re.compile(r"parent (0x[0-9a-f]{1,16}) splitCount (\d{1,9}) color (-?\d{1,10}) ")

_BEFORE, _AFTER = 1000, 1200
"""Characters of a line that are read before and after the words that identify it."""


class LogPlace(NamedTuple):
    """The rank, group and time that a line of the watchdog states; unknown numbers are -1.

    Attributes:
        rank: Global rank, as torch's prefix `[rank3]:` states it.
        group_rank: Rank within the group.
        group: Name of the group, `PG GUID`, or the only number that the line has; "" if none.
        description: What the group is called, `default_pg`.
        time: `816 01:45:40.212`, month and day and time of day; "" if the line has none.
    """

    rank: int
    group_rank: int
    group: str
    description: str
    time: str


class TimedOutWork(NamedTuple):
    """A collective that timed out; `seq_num` counts the collectives of the group from 1."""

    place: LogPlace
    seq_num: int
    operation: str
    num_in: int
    num_out: int
    timeout_ms: int
    ran_for_ms: int


class WorkStatus(NamedTuple):
    """Progress of a rank in a group; `at_work` is the collective that failed."""

    place: LogPlace
    at_work: int
    enqueued: int
    started: int
    completed: int


class NcclCall(NamedTuple):
    """A call as NCCL was given it: `count` elements, in NCCL's numbers of types and reductions."""

    host: str
    pid: int
    function: str
    op_count: int
    count: int
    dtype: int
    reduction: int
    root: int
    communicator: str
    num_ranks: int
    global_rank: int


class NcclInit(NamedTuple):
    """A communicator as a rank in it created it; `name` is equal on all of them, or ""."""

    host: str
    pid: int
    communicator: str
    rank: int
    num_ranks: int
    name: str
    split: tuple[str, str, str]


LogLine = TimedOutWork | WorkStatus | NcclCall | NcclInit


def has_log_lines(text: str) -> bool:
    """Return whether a text has lines that are read here."""
    return next(log_lines(text), None) is not None


def log_lines(text: str) -> Iterator[LogLine]:
    """Yield what the lines of a text state, in order."""
    for found in _FOUND.finditer(text):
        word, start = found[0], found.start()
        if word.startswith("Work"):
            line: LogLine | None = _work(text, start)
        elif word.endswith("enqueued "):
            line = _status(text, start)
        else:
            line = _of_nccl(text, start)
        if line is not None:
            yield line


def _before(text: str, start: int) -> str:
    """Return the part of a line before a place."""
    begin = max(text.rfind("\n", max(0, start - _BEFORE), start) + 1, start - _BEFORE, 0)
    return text[begin:start]


def _place(text: str, start: int) -> LogPlace:
    before = _before(text, start)
    own = [found for found in _GLOBAL_RANK.finditer(before)]
    labels = [found for found in _LABEL.finditer(before)]
    named = [found for found in labels if found[2]]
    label = (named or labels or [None])[-1]
    rank = _rank(own[-1][1]) if own else NOT_KNOWN
    times = _TIME.findall(before)
    last = times[-1] if times else ""
    if label is None:
        return LogPlace(rank, NOT_KNOWN, "", "", last)
    return LogPlace(rank, _rank(label[4]), label[2] or "", label[3] or "", last)


def _rank(text: str | None) -> int:
    rank = int(text) if text else NOT_KNOWN
    return rank if rank < MAX_RANKS else NOT_KNOWN


def _work(text: str, start: int) -> TimedOutWork | None:
    end = _END_OF_FIELDS.search(text, start, start + _AFTER)
    if end is None or "\n" in text[start : end.end()]:
        return None
    fields: Mapping[str, str] = dict(_FIELD.findall(text, start, end.end()))
    if "OpType" not in fields:
        return None
    seq_num, num_in, num_out, timeout = (
        int(fields[name]) if fields.get(name, "").isdecimal() and len(fields[name]) < 19 else -1
        for name in ("SeqNum", "NumelIn", "NumelOut", "Timeout(ms)")
    )
    place = _place(text, start)
    ran = _RAN_FOR.match(text, end.end())
    ran_for = int(ran[1]) if ran else NOT_KNOWN
    return TimedOutWork(place, seq_num, fields["OpType"], num_in, num_out, timeout, ran_for)


def _status(text: str, start: int) -> WorkStatus | None:
    found = _STATUSES.match(text, start)
    if found is None:
        return None
    at_work = [each for each in _AT_WORK.finditer(_before(text, start))]
    enqueued, started, completed = (
        max(int(each), 0) if each is not None else NOT_KNOWN for each in found.groups()
    )
    return WorkStatus(
        _place(text, start),
        int(at_work[-1][1]) if at_work else NOT_KNOWN,
        enqueued,
        started,
        completed,
    )


def _of_nccl(text: str, start: int) -> NcclCall | NcclInit | None:
    call = _CALLS.match(text, start)
    init = None if call else _INITS.match(text, start)
    if call is None and init is None:
        return None
    process = _PROCESS.search(_before(text, start))
    host, pid = (process[1], int(process[2])) if process else ("", NOT_KNOWN)
    if call is not None:
        function, op_count, count, dtype, reduction, root, communicator, size, rank = call.groups()
        return NcclCall(
            host, pid, function, int(op_count, 16), int(count), int(dtype), int(reduction),
            int(root), communicator, int(size), _rank(rank),
        )  # fmt: skip
    assert init is not None
    name = _COMMUNICATOR_ID.search(init[4])
    split = _SPLIT.search(init[4])
    size = int(init[3])
    if not 0 <= int(init[2]) < size <= MAX_RANKS or "START" in init[4]:
        return None
    return NcclInit(
        host, pid, init[1], int(init[2]), size, name[1] if name else "",
        (split[1], split[2], split[3]) if split else ("", "", ""),
    )  # fmt: skip
