import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def convert(out, shards):
    command = [sys.executable, os.path.join(HERE, "convert.py"), out, str(shards)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    code = process.wait()
    if code:
        raise RuntimeError(f"conversion failed with {code}: {process.stdout.read()[-500:]}")
    return len(process.stdout.read().splitlines())
