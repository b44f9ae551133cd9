"""Files that are written whole or not at all, and that only their owner can read.

A trace holds host names, command lines, paths and lines of source. What commtrace writes is
therefore open to its owner alone (files 0600, folders 0700), unless the folder that it is put into
says otherwise:

| the folder                           | permissions of a new file in it |
| ------------------------------------ | ------------------------------- |
| has the setgid bit                   | the group's are the folder's    |
| is open to its group, not to others  | the group's are the folder's    |
| has a default access-control list    | by that list                    |

The umask always counts. A file of one's own that is replaced keeps its permissions.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OWNER = 0o700
_READ_WRITE = 0o666
_ALL = 0o777
_DEFAULT_LIST = "system.posix_acl_default"


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path; atomically rename it to `path` on success, remove it on failure.

    It is in the same folder, ends alike, and exists already, with the permissions of the file.
    """
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    unfinished.unlink(missing_ok=True)  # of a process that had this number and was killed
    os.close(opener(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield unfinished
        _keep_permissions(path, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def opener(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that may have to be made: the `opener` to give to `open`."""
    return os.open(path, flags | os.O_CLOEXEC, _allowed_in(Path(path).parent) & _READ_WRITE)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, where they are missing; others stay as they are."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    try:
        path.mkdir(mode=_allowed_in(path.parent))
    except FileExistsError:
        if not path.is_dir():
            raise


def _allowed_in(folder: Path) -> int:
    """The permissions of a new folder in `folder`; the umask takes from them when it is made."""
    if _has_default_list(folder):
        return _ALL
    mode = folder.stat().st_mode
    is_of_group = mode & stat.S_ISGID or not mode & stat.S_IRWXO
    return _OWNER | (mode & stat.S_IRWXG if is_of_group else 0)


def _has_default_list(folder: Path) -> bool:
    try:
        return bool(os.getxattr(folder, _DEFAULT_LIST))
    except (OSError, AttributeError):  # it has none; the system has none
        return False


def _keep_permissions(before: Path, after: Path) -> None:
    """Give a file the permissions of the one that it replaces, where that is one's own."""
    with contextlib.suppress(FileNotFoundError):
        there = before.lstat()
        if stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid():
            after.chmod(stat.S_IMODE(there.st_mode))
