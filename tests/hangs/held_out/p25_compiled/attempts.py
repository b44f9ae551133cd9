import logging
import time

log = logging.getLogger("attempts")


def attempt(function, *args, tries=3, pause=0.05, default=None):
    """Call the function; what fails is tried again, and given up after some tries."""
    for number in range(1, tries + 1):
        try:
            return function(*args)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            log.warning("try %d of %d: %s: %s", number, tries, type(error).__name__, first)
            time.sleep(pause * number)
    return default
