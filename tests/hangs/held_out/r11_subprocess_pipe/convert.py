"""Converts raw text to token files, one per shard. Run as a program of its own."""
import random
import sys


def main():
    out, shards = sys.argv[1], int(sys.argv[2])
    source = random.Random(0)
    for shard in range(shards):
        rows = [[source.randrange(64) for _ in range(12)] for _ in range(64)]
        with open(f"{out}/shard-{shard:03d}.txt", "w") as file:
            for number, row in enumerate(rows):
                file.write(" ".join(map(str, row)) + "\n")
                print(f"shard {shard} row {number}: {len(row)} tokens, first {row[0]}")


if __name__ == "__main__":
    main()
