"""Loads what records this process once the program loads torch; a start without torch stays short.

    COMMTRACE=RUN.comm torchrun --nproc-per-node 4 train.py

It is installed as `commtrace_auto`, beside the package, and imported where COMMTRACE is set, when
Python starts; it loads nothing itself.
"""

import os
import sys


class _BeforeTorch:
    """Import hook that lets `auto` prepare the recording before torch is loaded."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return None, so that the module is looked for elsewhere."""
        if name == "torch":
            sys.meta_path.remove(self)
            import commtrace.launching.auto  # noqa: F401
        return None


def _start() -> None:
    try:
        # Absolute, since a program may change its folder before it starts others.
        os.environ["COMMTRACE"] = os.path.abspath(os.environ["COMMTRACE"])
    except OSError as error:
        found = os.environ["COMMTRACE"].encode("unicode_escape").decode()
        sys.stderr.write(
            f"commtrace: this process is not recorded\n  found: COMMTRACE={found}"
            f", and the current folder is gone ({error.strerror})\n  try: an absolute path\n"
        )
        del os.environ["COMMTRACE"]
        return
    if "torch" in sys.modules:
        import commtrace.launching.auto  # noqa: F401
    else:
        sys.meta_path.insert(0, _BeforeTorch())  # type: ignore[arg-type]


_start()
