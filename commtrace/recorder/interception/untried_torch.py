"""Name the operators of an untried torch that may communicate and would go unrecorded.

torch adds collectives with its releases. The tables of `signatures` were compared with the
operators of `NEWEST_TRIED` and older; with a newer torch, the first recording of a process compares
them with the operators that are registered there, and warns of the rest by name.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable

import torch

from commtrace.recorder.interception.signatures import SIGNATURES, SILENT
from commtrace.torch_internals.dispatcher import schemas

NEWEST_TRIED = (2, 15)
_NAMESPACES = frozenset(name.partition("::")[0] for name in {*SIGNATURES, *SILENT})
_GROUP_ARGUMENTS = frozenset({"process_group", "group_name"})


class UnrecordedOperatorsWarning(UserWarning):
    """The installed torch has collectives that this version of commtrace does not record."""


def communication_operators() -> set[str]:
    """Return the operators of torch's communication namespaces, and others that take a group."""
    return {
        schema.name
        for schema in schemas()
        for namespace in [schema.name.partition("::")[0]]
        if namespace in _NAMESPACES
        or (
            namespace in ("aten", "prims")
            and _GROUP_ARGUMENTS & {argument.name for argument in schema.arguments}
        )
    }


def unrecorded(operators: Iterable[str]) -> list[str]:
    """Return the operators that neither table has, sorted."""
    return sorted({*operators} - {*SIGNATURES} - {*SILENT})


@functools.cache
def warn_of_unrecorded_operators() -> None:
    """Warn once per run, on rank 0, if torch is newer than tried and has unknown operators."""
    version = tuple(int(each) for each in torch.__version__.split(".")[:2])
    if version <= NEWEST_TRIED or os.environ.get("RANK", "0") != "0":
        return
    if names := unrecorded(communication_operators()):
        warnings.warn(
            f"torch {torch.__version__} is newer than {'.'.join(map(str, NEWEST_TRIED))}, the "
            f"newest that this commtrace was tried with. Calls of these operators are not "
            f"recorded: {', '.join(names)}",
            UnrecordedOperatorsWarning,
            stacklevel=2,
        )
