"""Splits a text to numbers; run as a program, it reads a file and writes a line for each word."""
import subprocess
import sys
import zlib


def encode(word, vocab=64):
    return zlib.crc32(word.encode()) % vocab


class ExternalTokenizer:
    def __init__(self, script=__file__):
        self.command = [sys.executable, script]

    def run(self, path):
        proc = subprocess.Popen([*self.command, path], stdout=subprocess.PIPE, text=True)
        code = proc.wait()
        if code != 0:
            raise RuntimeError(f"tokenizer ended with {code}")
        return [int(line) for line in proc.stdout]


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        for word in f.read().split():
            print(encode(word))
