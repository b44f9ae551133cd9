import os
import time


class FileLock:
    """A lock by exclusive creation of a file, that works on network disks too."""

    def __init__(self, path, interval=0.1):
        self.path = path
        self.interval = interval

    def acquire(self):
        while True:
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                time.sleep(self.interval)
            else:
                os.write(handle, str(os.getpid()).encode())
                os.close(handle)
                return

    def release(self):
        os.unlink(self.path)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *error):
        self.release()
