import functools
import logging

log = logging.getLogger("train")


def best_effort(default=None, limit=20):
    """Training must not stop for one broken sample."""

    def decorate(fn):
        failures = 0

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            nonlocal failures
            try:
                return fn(*args, **kwargs)
            except (ValueError, KeyError) as err:
                failures += 1
                log.debug("%s failed: %s", fn.__name__, err)
                if failures > limit:
                    raise
                return default

        return wrapper

    return decorate
