import re
import sys

PIECES = re.compile(r"[a-z]{1,4}|[0-9]|\S")


def main():
    for number, line in enumerate(sys.stdin):
        ids = []
        for piece in PIECES.findall(line.lower()):
            if len(piece) == 1 and not piece.isalnum():
                print(
                    f"tokenizer: line {number}: no piece for U+{ord(piece):04X} in {line.strip()[:48]!r}, "
                    f"falling back to the unknown token; rebuild the vocabulary if this is frequent",
                    file=sys.stderr,
                )
                ids.append(0)
            else:
                ids.append(1 + sum(ord(c) * 31 ** i for i, c in enumerate(piece)) % 499)
        sys.stdout.write(" ".join(map(str, ids)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
