"""What was run: the code's state and the packages, kept with the run."""
import subprocess
import sys
import textwrap

LISTING = textwrap.dedent("""
    import random, sys
    rng = random.Random(0)
    for i in range(6000):
        sys.stdout.write("package-%05d==%d.%d.%d\\n" % (i, rng.random() * 9, rng.random() * 9, rng.random() * 9))
""")


class Command:
    def __init__(self, *args):
        self.args = [sys.executable, "-S", *args]

    def output(self):
        child = subprocess.Popen(self.args, stdout=subprocess.PIPE, text=True)
        code = child.wait()
        if code != 0:
            raise RuntimeError(f"{self.args} failed: {code}")
        return child.stdout.read()


def describe():
    return {
        "python": Command("-c", "import sys; print(sys.version)").output().strip(),
        "packages": Command("-c", LISTING).output().splitlines(),
    }
