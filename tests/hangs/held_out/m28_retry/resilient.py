import functools
import time


def retrying(times, on, pause=0.1):
    def wrap(fn):
        @functools.wraps(fn)
        def call(*args, **kw):
            for attempt in range(times):
                try:
                    return fn(*args, **kw)
                except on:
                    if attempt == times - 1:
                        raise
                    time.sleep(pause)
        return call
    return wrap
