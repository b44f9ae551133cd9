import time


def attempt(fn, *args, tries=3, delay=0.1, default=None):
    """Calls fn until it works; storage is sometimes away for a moment."""
    for i in range(tries):
        try:
            return fn(*args)
        except Exception:
            time.sleep(delay * 2 ** i)
    return default
