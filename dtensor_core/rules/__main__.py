"""`python -m dtensor_core.rules [--markdown]`: the table of operators."""

from __future__ import annotations

import argparse

from dtensor_core.rules.listing import markdown, plain


def main() -> None:
    """Print the table of operators as requested on the command line."""
    parser = argparse.ArgumentParser(prog="python -m dtensor_core.rules", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="as in docs/operators.md")
    print(markdown() if parser.parse_args().markdown else plain())


if __name__ == "__main__":
    main()
