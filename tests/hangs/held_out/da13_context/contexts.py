import time


class Optional:
    """A section of the step that may do without its file."""

    def __init__(self, name, log):
        self.name = name
        self.log = log

    def __enter__(self):
        self.begin = time.perf_counter()
        return self

    def __exit__(self, kind, error, trace):
        self.log.append((self.name, time.perf_counter() - self.begin))
        if kind is not None and issubclass(kind, FileNotFoundError):
            self.log.append((self.name, "absent"))
            return True
        return False
