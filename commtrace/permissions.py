"""Permissions of files and folders that commtrace creates: owner only by default.

A trace contains host names, command lines, paths and source lines. Files and folders are therefore
accessible to their owner only (0600 and 0700), unless the parent folder specifies otherwise:

| the folder                           | permissions of a new file in it |
| ------------------------------------ | ------------------------------- |
| has the setgid bit                   | the group's are the folder's    |
| is open to its group, not to others  | the group's are the folder's    |
| has a default access-control list    | by that list                    |

The umask always applies. A replaced file of the same owner keeps its permissions.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OWNER = 0o700
_READ_WRITE = 0o666
_ALL = 0o777
_DEFAULT_LIST = "system.posix_acl_default"


def opener(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, creating it with the permissions of this module: the `opener` for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, allowed_in(Path(path).parent) & _READ_WRITE)


def allowed_in(folder: Path) -> int:
    """Return the permissions of a new folder in `folder`; the umask still applies."""
    if _has_default_list(folder):
        return _ALL
    mode = folder.stat().st_mode
    is_of_group = mode & stat.S_ISGID or not mode & stat.S_IRWXO
    return _OWNER | (mode & stat.S_IRWXG if is_of_group else 0)


def keep_permissions(before: Path, after: Path) -> None:
    """Give a file the permissions of the file it replaces, if the user owns that."""
    with contextlib.suppress(FileNotFoundError):
        status = before.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            after.chmod(stat.S_IMODE(status.st_mode))


def _has_default_list(folder: Path) -> bool:
    try:
        return bool(os.getxattr(folder, _DEFAULT_LIST))
    except (OSError, AttributeError):  # no such list, or no support for them
        return False
