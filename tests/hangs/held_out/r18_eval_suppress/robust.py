import logging

log = logging.getLogger(__name__)


def attempt(function, *args, default=None, tries=2):
    """Calls a function again if it fails; an evaluation must not end the training."""
    for number in range(tries):
        try:
            return function(*args)
        except (RuntimeError, OSError) as error:
            log.warning("try %d of %s: %s", number + 1, function.__name__,
                        str(error).splitlines()[0])
    return default
