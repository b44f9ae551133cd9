"""Scores predictions: python score.py FILE. The last line has the result."""
import json
import sys


def main(path):
    with open(path) as file:
        rows = json.load(file)
    wrong = 0
    for number, (predicted, label) in enumerate(rows):
        if predicted != label:
            wrong += 1
            print(f"row {number:6d}: predicted class {predicted}, but the label is {label}")
    print(json.dumps({"accuracy": 1 - wrong / max(len(rows), 1)}))


if __name__ == "__main__":
    main(sys.argv[1])
