"""Messages of MLCommons Chakra's execution traces, as classes of the `protobuf` library.

    NAME.RANK.et = length, GlobalMetadata, length, Node, length, Node, ...

The exporter writes them and the importer reads them. `MESSAGES` and `ENUMS` are the published
definition: names and numbers of fields. Source: schema/protobuf/et_def.proto of
github.com/mlcommons/chakra, package ChakraProtoMsg (Apache License 2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from commtrace.errors import UsageError

PACKAGE = "ChakraProtoMsg"

NODE_TYPES = (
    INVALID_NODE, METADATA_NODE, MEM_LOAD_NODE, MEM_STORE_NODE, COMP_NODE, COMM_SEND_NODE,
    COMM_RECV_NODE, COMM_COLL_NODE,
) = tuple(range(8))  # fmt: skip
"""Values of `NodeType`."""

ENUMS: Mapping[str, tuple[str, ...]] = {
    "NodeType": (
        "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
        "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE",
    ),
    "CollectiveCommType": (
        "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL",
        "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER",
    ),
}  # fmt: skip
"""Names of the values of each enumeration, which count from 0."""

COLLECTIVES: Mapping[str, int] = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
    "all_to_all": 6, "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
"""Kinds of collectives as values of `CollectiveCommType`."""

KIND_OF_TYPE: Mapping[int, str] = {
    **{number: kind for kind, number in COLLECTIVES.items()},
    8: "reduce_scatter",
}
"""Kinds by values of `CollectiveCommType`; 8 is MPI's name for equal parts."""

SIMULATED: Mapping[str, str] = {
    "is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val",
    "comm_type": "int64_val", "comm_priority": "int32_val", "comm_size": "int64_val",
    "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
    "pg_name": "string_val",
}  # fmt: skip
"""Attributes that simulators read, with the fields from which they do."""

OWN = "commtrace."
"""Prefix of attributes that have the columns of a row of a trace."""
OWN_TABLE = f"{OWN}table"
OWN_STEPS = f"{OWN}steps"
OWN_KERNELS = f"{OWN}kernels."
"""Prefix of attributes of a call that list a column of its kernels."""

_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FIRST_VALUE = 3
"""Number of `double_val`; each type has a value and a list, in the order of `_SCALARS`."""

_ONEOF = "value"


@dataclass(frozen=True, slots=True)
class MessageField:
    """A field of a message.

    Attributes:
        number: Its number.
        type: A scalar type, or the name of a message or an enumeration.
        is_repeated: The field is a list.
        is_choice: The field is one of the message's alternatives.
    """

    number: int
    type: str
    is_repeated: bool = False
    is_choice: bool = False


def _attribute() -> dict[str, MessageField]:
    found = {"name": MessageField(1, "string"), "doc_string": MessageField(2, "string")}
    for place, scalar in enumerate(_SCALARS):
        number = _FIRST_VALUE + 2 * place
        found[f"{scalar}_val"] = MessageField(number, scalar, is_choice=True)
        found[f"{scalar}_list"] = MessageField(number + 1, _list_of(scalar), is_choice=True)
    return found


def _list_of(scalar: str) -> str:
    return f"{scalar.capitalize()}List"


MESSAGES: Mapping[str, Mapping[str, MessageField]] = {
    "AttributeProto": _attribute(),
    **{
        _list_of(scalar): {"values": MessageField(1, scalar, is_repeated=True)}
        for scalar in _SCALARS
    },
    "GlobalMetadata": {
        "version": MessageField(1, "string"),
        "attr": MessageField(2, "AttributeProto", is_repeated=True),
    },
    "Node": {
        "id": MessageField(1, "uint64"),
        "name": MessageField(2, "string"),
        "type": MessageField(3, "NodeType"),
        "ctrl_deps": MessageField(4, "uint64", is_repeated=True),
        "data_deps": MessageField(5, "uint64", is_repeated=True),
        "start_time_micros": MessageField(6, "uint64"),
        "duration_micros": MessageField(7, "uint64"),
        "inputs": MessageField(8, "IOInfo"),
        "outputs": MessageField(9, "IOInfo"),
        "attr": MessageField(10, "AttributeProto", is_repeated=True),
    },
    "IOInfo": {
        "values": MessageField(1, "string"),
        "shapes": MessageField(2, "string"),
        "types": MessageField(3, "string"),
    },
}
"""Fields of each message by name."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Classes of the messages, and the module that writes and reads them with their lengths."""

    metadata: Any
    node: Any
    proto: Any


@lru_cache(maxsize=1)
def messages(purpose: str) -> Messages:
    """Return the classes of the messages.

    Args:
        purpose: What they are needed for, as the summary of the error.

    Raises:
        UsageError: protobuf is not installed.
    """
    try:
        from google.protobuf import (  # pyright: ignore[reportMissingImports]
            descriptor_pb2,
            descriptor_pool,
            message_factory,
            proto,
        )
    except ImportError as error:
        raise UsageError(
            purpose,
            found="no protobuf, or a release before 5.29",
            why="it is not among the packages that commtrace installs by itself",
            attempt="`pip install 'commtrace[chakra]'`",
        ) from error
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_definition(descriptor_pb2))

    def class_of(name: str) -> Any:
        found = pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        return message_factory.GetMessageClass(found)

    return Messages(class_of("GlobalMetadata"), class_of("Node"), proto)


def _definition(descriptors: Any) -> Any:
    """Return the definition as protobuf describes files."""
    file = descriptors.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    kinds = descriptors.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if any(field.is_choice for field in fields.values()):
            message.oneof_decl.add(name=_ONEOF)
        for field_name, field in fields.items():
            one = message.field.add(name=field_name, number=field.number)
            one.label = kinds.LABEL_REPEATED if field.is_repeated else kinds.LABEL_OPTIONAL
            if field.type in _SCALARS:
                one.type = getattr(kinds, f"TYPE_{field.type.upper()}")
            else:
                one.type = kinds.TYPE_ENUM if field.type in ENUMS else kinds.TYPE_MESSAGE
                one.type_name = f".{PACKAGE}.{field.type}"
            if field.is_choice:
                one.oneof_index = 0
    return file
