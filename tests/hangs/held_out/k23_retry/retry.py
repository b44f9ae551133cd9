import functools
import time


def retry(times, wait=0.1, on=(ValueError, OSError)):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            for attempt in range(times):
                try:
                    return fn(*args, **kwargs)
                except on:
                    if attempt + 1 == times:
                        raise
                    time.sleep(wait)
        return wrapper
    return decorate
