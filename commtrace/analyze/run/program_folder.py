"""Source files in sentences, relative to the folder of the program.

Tables have files as the interpreter names them, which are absolute if the program was started by
`commtrace run`. Sentences name `train.py:12` in place of `/home/me/project/train.py:12`; a file
of another folder keeps its full name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from commtrace.analyze.run.frame import Frames


def relative(frames: Frames, text: str) -> str:
    """Return a text with the files of the program's folder named relative to it."""
    return relative_to(program_folder(frames), text)


def relative_to(folder: str, text: str) -> str:
    """Return a text with the files of a folder, as of `program_folder`, named relative to it."""
    return re.sub(rf"(?<![\w./~-]){re.escape(folder)}", "", text) if folder else text


def name_of(frames: Frames) -> str:
    """Return the command of a run with its files relative to the program, or the run's file."""
    command = str(frames.run.get("command") or "")
    return relative(frames, command) or (frames.path.name if frames.path else "a run")


def program_folder(frames: Frames) -> str:
    """Return the folder of the program, with a separator at its end; empty if it is unknown."""
    files = frames.sources["file"].astype(object).unique().tolist()
    return folder_of(str(frames.run.get("command") or ""), files)


def folder_of(command: str, files: Iterable[str]) -> str:
    """Return the folder of the program of a command that has these files; empty if unknown."""
    script = next((word for word in command.split() if word.endswith(".py")), "")
    name = os.path.normpath(script) if script else ""
    if not os.path.isabs(name):
        ending = f"/{name.replace('../', '')}"
        places = {str(file) for file in files if name and str(file).endswith(ending)}
        name = places.pop() if len(places) == 1 else ""
    folder = os.path.dirname(name)
    return f"{folder}/" if folder.strip("/") else ""
