"""Communication kernels by name, with the pattern that recognized each, and unrecognized kernels.

A kernel communicates if a pattern of kernel names matches its name, if a call launched it, or if
the profile describes it as a collective; its kind comes from its calls, otherwise from the
pattern. Kernels that were imported as computing, but have names like communication kernels, are
listed with the line for `[tool.commtrace.kernels]` that makes them communication. `KIND` in it
stands for a kind that the name does not state. If a pattern matches a kernel that was imported as
computing, the pattern was added after the import: import the profile again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd

from commtrace.analyze.devices.device_work import rows_of_calls
from commtrace.analyze.measures.measures import summed
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.device_kernels import UNKNOWN, recognizer
from commtrace.schema import COMMUNICATION, COMPUTE, Column

BUILT_IN, SETTINGS, DESCRIPTION, NOTHING = "built-in", "settings", "description", "nothing"

LOOKS_LIKE = re.compile(
    r"(?:[nrmhex]|one|ms)ccl|cncl|hcom_|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|"
    r"(?:nv|roc)shmem|deep_?ep|(?:intra|inter)node|multimem|symm_?mem|cross_device|userbuffers",
    re.IGNORECASE,
)
"""Parts of names of communication kernels."""

_KINDS = {
    r"all_?reduce": "all_reduce",
    r"all_?gather": "all_gather",
    r"reduce_?scatter": "reduce_scatter",
    r"all_?to_?all": "all_to_all",
}
_WORD = re.compile(rf"[\w:]*(?:{LOOKS_LIKE.pattern})[\w:]*", re.IGNORECASE)
"""The part of a name without types and arguments that looks like communication."""

COLUMNS = (
    Column("name", str, "", "name of the kernel", title="Kernel"),
    Column("kind", str, "", "kind of communication; empty if unknown"),
    Column("is_communication", bool, "", "it was imported as communication", title="Communication"),
    Column(
        "matched_by",
        str,
        "",
        "built-in or settings, whose pattern matches the name; otherwise description, of the "
        "collective that the profile states for it or that launched it, or nothing",
    ),
    Column("pattern", str, "", "regular expression that matches the name"),
    Column("num_kernels", int, "", "kernels of all ranks", title="Kernels"),
    Column("time_ns", int, "ns", "their durations on all ranks", title="Time"),
    Column("setting", str, "", "line for [tool.commtrace.kernels] that makes it communication"),
)


def kernel_patterns(frames: Frames) -> pd.DataFrame:
    """Return a row per name, kind and category, the longest time first."""
    keys = ["name", "kind", "is_communication"]
    table = summed(frames.by_ranks(_sums)).reset_index()
    known = _names(frames, table["name"].unique()).loc[table["name"]].reset_index(drop=True)
    is_described = table["is_communication"] & (known["pattern"] == "")
    table = table.assign(
        pattern=known["pattern"],
        matched_by=known["matched_by"].mask(is_described, DESCRIPTION),
        setting=known["setting"].mask(table["is_communication"], ""),
    )
    ordered = table.sort_values(["time_ns", *keys], ascending=[False, True, True, True])
    return typed(ordered, COLUMNS)


def _sums(frames: Frames) -> pd.DataFrame:
    """Return number and time of kernels by name, kind and whether they communicate."""
    kernels = frames.kernels
    names = _names(frames, kernels["name"].cat.categories)
    communicates = kernels["category"] == COMMUNICATION
    is_similar = kernels["name"].isin(names.index[names["is_similar"]])
    rows = kernels[communicates | (is_similar & (kernels["category"] == COMPUTE))]
    of_name = names.loc[rows["name"].astype(object)]
    of_call = _kinds(frames, rows)
    return (
        pd.DataFrame(
            {
                "name": rows["name"].astype(object).to_numpy(),
                "kind": np.where(of_call != "", of_call, of_name["kind"]),
                "is_communication": communicates[rows.index].to_numpy(),
                "time_ns": addable(rows["duration_ns"].clip(lower=0)).to_numpy(),
            }
        )
        .groupby(["name", "kind", "is_communication"])
        .agg(num_kernels=("time_ns", "size"), time_ns=("time_ns", "sum"))
    )


def _names(frames: Frames, names: Iterable[str]) -> pd.DataFrame:
    """Return facts of each name: `kind pattern matched_by setting is_similar`, by name."""
    own = frames.settings.kernels
    recognized = recognizer(own)
    found = []
    for name in names:
        kernel = recognized(name)
        if kernel is not None:
            kind = "" if kernel.kind == UNKNOWN else kernel.kind
            by = SETTINGS if kernel.pattern in own else BUILT_IN
            found.append((name, kind, kernel.pattern, by, "", True))
        elif LOOKS_LIKE.search(name):
            found.append((name, kind_in(name), "", NOTHING, setting_for(name), True))
        else:
            found.append((name, "", "", NOTHING, "", False))
    columns = ["name", "kind", "pattern", "matched_by", "setting", "is_similar"]
    return pd.DataFrame(found, columns=pd.Index(columns)).set_index("name")


def kind_in(name: str) -> str:
    """Return the kind of communication that a name states; empty if none.

    >>> kind_in("my_lib::fastAllReduce<float>")
    'all_reduce'
    """
    found = (kind for part, kind in _KINDS.items() if re.search(part, name, re.IGNORECASE))
    return next(found, "")


def setting_for(name: str) -> str:
    """Return the line of pyproject.toml by which a kernel like this is communication.

    >>> print(setting_for("void my_lib::fast_all_reduce<float>(float*, int)"))
    '*my_lib::fast_all_reduce*' = "all_reduce"
    """
    found = _WORD.search(name)
    word = found[0].strip(":") if found else ""
    return f"'*{word}*' = \"{kind_in(name) or 'KIND'}\""


def _kinds(frames: Frames, kernels: pd.DataFrame) -> np.ndarray:
    """Return the kind of each kernel's call; empty for kernels without a call or a known kind."""
    kinds = np.append(frames.comm["kind"].astype(object).to_numpy(), "")
    found = kinds[rows_of_calls(frames, kernels)]
    return np.where(found == UNKNOWN, "", found)


KERNEL_PATTERNS = Analysis(
    "kernel_patterns",
    "Communication kernels",
    "Which kernels communicate, and by which pattern were they recognized?",
    kernel_patterns,
    COLUMNS,
    topic="Devices",
    shown="name kind is_communication matched_by num_kernels time_ns setting",
    needs="kernels",
)
