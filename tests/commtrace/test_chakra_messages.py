"""The table of Chakra's messages is the published definition, as protoc compiles it."""

from __future__ import annotations

import subprocess
import sys

from google.protobuf import descriptor_pb2

from commtrace.chakra_messages import (
    COLLECTIVES,
    ENUMS,
    KIND_OF_TYPE,
    MESSAGES,
    MessageField,
    messages,
)
from tests.commtrace.exporters.chakra_files import message, published

KINDS = descriptor_pb2.FieldDescriptorProto


def test_messages_have_the_published_fields() -> None:
    found = {
        each.name: {
            field.name: MessageField(
                field.number,
                field.type_name.rpartition(".")[2] or KINDS.Type.Name(field.type)[5:].lower(),
                field.label == KINDS.LABEL_REPEATED,
                field.HasField("oneof_index"),
            )
            for field in each.field
        }
        for each in published().message_type
    }
    assert found == MESSAGES


def test_enumerations_have_the_published_values() -> None:
    found = {
        each.name: {value.name: value.number for value in each.value}
        for each in published().enum_type
    }
    expected = {
        name: {value: number for number, value in enumerate(values)}
        for name, values in ENUMS.items()
    }
    assert found == expected
    types = ENUMS["CollectiveCommType"]
    assert {kind: types[number].lower() for kind, number in COLLECTIVES.items()} == {
        kind: kind for kind in COLLECTIVES
    }
    assert KIND_OF_TYPE.keys() == set(range(len(types)))


def test_a_message_is_written_as_the_published_definition_reads_it() -> None:
    own = messages("cannot test").node(id=7, name="x", type=4, data_deps=[1, 300])
    own.attr.add(name="sizes").sint64_list.values.extend([-1, 1 << 40])
    read = message("Node")
    read.ParseFromString(own.SerializeToString())
    assert (read.id, read.name, read.type, [*read.data_deps]) == (7, "x", 4, [1, 300])
    assert [*read.attr[0].sint64_list.values] == [-1, 1 << 40]


def test_without_protobuf_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["google.protobuf"] = None
from commtrace.chakra_messages import messages
from commtrace.errors import UsageError
try:
    messages("cannot write execution traces of Chakra")
except UsageError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == (
        "cannot write execution traces of Chakra\n"
        "  found: no protobuf, or a release before 5.29\n"
        "  why: it is not among the packages that commtrace installs by itself\n"
        "  try: `pip install 'commtrace[chakra]'`\n"
    )
