import functools
import sys


def tolerant(default=None):
    """A client with bad records must not end the federation."""

    def wrap(fn):
        @functools.wraps(fn)
        def inner(self, *args, **kwargs):
            try:
                return fn(self, *args, **kwargs)
            except (ValueError, ArithmeticError) as error:
                self.failures += 1
                print(f"client {self.rank}: {error}", file=sys.stderr, flush=True)
                return default
        return inner
    return wrap
