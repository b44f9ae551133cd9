import functools
import time


def retry(times=3, delay=0.05, default=None):
    """Repeats a call that failed for a reason that may pass."""

    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            for attempt in range(times):
                try:
                    return fn(*args, **kwargs)
                except (OSError, ValueError):
                    time.sleep(delay * (attempt + 1))
            return default

        return wrapper

    return decorate
