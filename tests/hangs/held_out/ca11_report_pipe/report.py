"""Prints one line for each validation example: python report.py VALUES.npy"""
import sys

import numpy as np


def main():
    values = np.load(sys.argv[1])
    for index, value in enumerate(values):
        verdict = "ok" if abs(value) < 1 else "LARGE"
        print(f"example {index:06d}  residual {value:+.6f}  {verdict}")
    print(f"mean {np.abs(values).mean():.6f}")


if __name__ == "__main__":
    main()
