"""Sorts the positions on standard input: a child process with a heap of its own."""
import sys

if __name__ == "__main__":
    rows = [line.split("\t") for line in sys.stdin]
    rows.sort(key=lambda row: (row[0], int(row[1])))
    sys.stdout.writelines("\t".join(row) for row in rows)
