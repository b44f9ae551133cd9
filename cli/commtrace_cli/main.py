"""The command `commtrace`: its commands, and how it ends when something is wrong."""

from __future__ import annotations

import sys

import typer

from commtrace.errors import CommtraceError, UsageError
from commtrace_cli import check, diff, explain, findings, merge, report, run, summary, table
from commtrace_cli.terminal import fail

EXIT_CODES = """
Exit codes:

- `0` done
- `1` the script failed, or could not be recorded; `check` found ranks that do not fit together;
  `diff` found what it was told to fail on
- `2` the command cannot be met as it was given
- `3` the trace cannot be read
- `128 + n` stopped by signal n
"""

app = typer.Typer(
    help="Shows where a distributed PyTorch program communicates, how much, and why.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(epilog=run.EXAMPLE, context_settings=run.SETTINGS)(run.run)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=summary.EXAMPLE)(summary.summary)
app.command(epilog=merge.EXAMPLE)(merge.merge)
app.command(epilog=table.EXAMPLE)(table.table)
app.command(epilog=findings.EXAMPLE)(findings.findings)
app.command(epilog=explain.EXAMPLE)(explain.explain)
app.command(epilog=diff.EXAMPLE)(diff.diff)
app.command(epilog=check.EXAMPLE)(check.check)


def main() -> None:
    """Run the command line and exit."""
    try:
        app(prog_name="commtrace")
    except CommtraceError as error:
        fail(error)
        sys.exit(error.exit_code)
    except OSError as error:  # no permission, no space left, a name too long
        refused = UsageError(error.strerror or str(error), place=str(error.filename or ""))
        fail(refused)
        sys.exit(refused.exit_code)
