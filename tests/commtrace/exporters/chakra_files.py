"""Execution traces of Chakra, read with the published definition, and run as simulators do.

The definition is compiled by protoc; nothing of commtrace's table of messages or its importer is
used. Simulators follow the rules of ASTRA-sim: a rank has one operation of the host, one of the
device and one of communication at a time, and of those that could begin, the lowest id does.
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

PROTO = Path(__file__).parent / "et_def.proto"
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7


@cache
def published() -> descriptor_pb2.FileDescriptorProto:
    """The published definition as protoc compiles it."""
    from grpc_tools import protoc

    with TemporaryDirectory() as folder:
        out = Path(folder) / "et_def.bin"
        includes = f"-I{PROTO.parent}", f"-I{resources.files('grpc_tools') / '_proto'}"
        arguments = ["protoc", *includes, f"--descriptor_set_out={out}", str(PROTO)]
        assert protoc.main(arguments) == 0
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def message(name: str, /, **fields: Any) -> Any:
    return _classes()[name](**fields)


@cache
def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(published())
    names = [each.name for each in published().message_type]
    full = {each: pool.FindMessageTypeByName(f"ChakraProtoMsg.{each}") for each in names}
    return {each: message_factory.GetMessageClass(found) for each, found in full.items()}


def written(*messages: Any) -> bytes:
    """Messages with their lengths."""
    stream = io.BytesIO()
    for each in messages:
        proto.serialize_length_prefixed(each, stream)
    return stream.getvalue()


@dataclass(slots=True)
class File:
    """A file: its metadata, its nodes by id in the order of the file, and their attributes."""

    about: Any
    nodes: dict[int, Any] = field(default_factory=dict)
    attributes: dict[int, dict[str, Any]] = field(default_factory=dict)

    def calls(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Id and attributes of the nodes of calls, by their numbers."""
        found = [
            (attributes["commtrace.id"], number)
            for number, attributes in self.attributes.items()
            if attributes.get("commtrace.table") == "comm"
        ]
        for _, number in sorted(found):
            yield number, self.attributes[number]

    def before(self) -> dict[int, set[int]]:
        """Calls that must have ended before each call, by their numbers."""
        seen: dict[int, int] = {}
        found: dict[int, int] = {}
        for number, node in self.nodes.items():
            mask = 0
            for each in (*node.data_deps, *node.ctrl_deps):
                mask |= seen[each]
            own = self.attributes[number]
            if own.get("commtrace.table") == "comm":
                found[own["commtrace.id"]] = mask
                mask |= 1 << own["commtrace.id"]
            seen[number] = mask
        return {
            call: {each for each in range(mask.bit_length()) if mask >> each & 1}
            for call, mask in found.items()
        }


def attributes_of(found: Any) -> dict[str, Any]:
    values = {each.name: getattr(each, each.WhichOneof("value")) for each in found}
    return {
        name: [*each.values] if hasattr(each, "values") else each for name, each in values.items()
    }


def read(path: Path) -> File:
    stream = io.BytesIO(path.read_bytes())
    found = File(proto.parse_length_prefixed(_classes()["GlobalMetadata"], stream))
    while (node := proto.parse_length_prefixed(_classes()["Node"], stream)) is not None:
        assert node.id not in found.nodes
        found.nodes[node.id] = node
        found.attributes[node.id] = attributes_of(node.attr)
    return found


def read_all(folder: Path) -> dict[int, File]:
    """Files by rank."""
    return {int(path.name.split(".")[-2]): read(path) for path in sorted(folder.glob("*.et"))}


@dataclass(slots=True)
class _Rank:
    """A rank that is simulated."""

    file: File
    waits_for: dict[int, set[int]]
    users: dict[int, list[int]]
    free: set[int]
    busy: Counter[str] = field(default_factory=Counter)
    num_calls: Counter[Any] = field(default_factory=Counter)

    @classmethod
    def of(cls, file: File, lists: tuple[str, ...]) -> _Rank:
        waits_for = {
            number: {each for name in lists for each in getattr(node, name)}
            for number, node in file.nodes.items()
        }
        users: dict[int, list[int]] = defaultdict(list)
        for number, needed in waits_for.items():
            for each in needed:
                users[each].append(number)
        return cls(file, waits_for, users, {each for each, of in waits_for.items() if not of})

    def resource(self, number: int) -> str:
        if self.file.attributes[number].get("is_cpu_op"):
            return "host"
        kind = self.file.nodes[number].type
        return {COMP: "device", RECV: ""}.get(kind, "communication")

    def end(self, number: int) -> None:
        self.busy[self.resource(number)] -= 1
        for each in self.users[number]:
            self.waits_for[each].discard(number)
            if not self.waits_for[each]:
                self.free.add(each)


def simulated(
    files: dict[int, File], lists: tuple[str, ...] = ("data_deps",), *, at_once: int = 1
) -> list[Any]:
    """Run all nodes of all ranks, and return how many of which rank could never begin or end.

    Args:
        files: Files by rank.
        lists: Lists of dependencies that the simulator follows.
        at_once: Operations of each sort that a rank can have at a time.
    """
    ranks = {rank: _Rank.of(file, lists) for rank, file in files.items()}
    meeting: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    sizes = {rank: len(file.nodes) for rank, file in files.items()}
    progress = True
    while progress:
        progress = False
        for rank, own in ranks.items():
            for number in sorted(own.free):
                resource = own.resource(number)
                if resource and own.busy[resource] >= at_once:
                    continue
                own.free.discard(number)
                own.busy[resource] += 1
                progress = True
                for other, its_number in _ended(files, ranks, meeting, rank, number):
                    ranks[other].end(its_number)
                    sizes[other] -= 1
    return [(rank, num) for rank, num in sizes.items() if num]


def _ended(
    files: dict[int, File], ranks: dict[int, _Rank], meeting: Any, rank: int, number: int
) -> list[tuple[int, int]]:
    """Ranks and nodes that end once a node has begun; sends are buffered."""
    own, node = ranks[rank], files[rank].nodes[number]
    attributes = files[rank].attributes[number]
    if node.type not in (SEND, RECV, COLLECTIVE):
        return [(rank, number)]
    if node.type == COLLECTIVE:
        about: Any = attributes.get("pg_name")
        num = _size_of(files[rank], about)
    else:
        about, num = tuple(attributes[name] for name in ("comm_src", "comm_dst", "comm_tag")), 2
    turn = own.num_calls[about, node.type == RECV]
    own.num_calls[about, node.type == RECV] += 1
    members = meeting[about, turn]
    members.append((rank, number))
    is_whole = len(members) == num
    if node.type == COLLECTIVE:
        return members if is_whole else []
    return [each for each in members if each[0] == about[1]] * is_whole + [(rank, number)] * (
        node.type == SEND
    )


def _size_of(file: File, group: str) -> int:
    text = next(iter(file.nodes.values())).inputs.values
    assert (text[:2], text[-2:]) == ("['", "']")
    return next(len(each["ranks"]) for each in json.loads(text[2:-2]) if each["pg_name"] == group)
