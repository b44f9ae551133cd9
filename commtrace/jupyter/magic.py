"""The magic `%%commtrace`: records the communication of a cell and shows it below.

The cell runs in the notebook's namespace as it would without the magic: its last expression is
displayed, its errors are its own, and neither leaves anything behind.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from commtrace.session import record
from commtrace.settings import DETAILS
from commtrace.tracefile import write_trace
from commtrace.views.cells import with_cells
from commtrace.views.run import load
from commtrace.views.views import Views

_USE = """\
Use:
    %%commtrace [NAME] [-o PATH] [-d {op,collective}] [--stacks] [-q]
        records the cell, shows a summary below it, and stores the run in the variable NAME
    %%commtrace sql NAME...
        answers the cell, a statement of SQL, from the runs in variables
Several ranks: run = commtrace.launch(FUNCTION, nproc=4)"""
_NPROC = re.compile(r"(?:^|\s)(?:--nproc(?:[-_]per[-_]node)?|-n)(?:[ =](\d+))?(?=\s|$)")


@magics_class
class CommtraceMagics(Magics):
    """The magics that `%load_ext commtrace` registers."""

    @magic_arguments()
    @argument("name", nargs="?", default="", help="variable to store the run in")
    @argument("-o", "--path", help="run file to write")
    @argument(
        "-d",
        "--detail",
        choices=DETAILS,
        default="op",
        help="record operators and communication (op), or communication only (collective)",
    )
    @argument("--stacks", action="store_true", help="record the full Python stack of each call")
    @argument("-q", "--quiet", action="store_true", help="show no summary")
    @cell_magic
    def commtrace(self, line: str, cell: str) -> None:
        """Record the communication of this cell, and show a summary below it.

        If a variable is named, the run is stored in it, as returned by `commtrace.load`.

        `%%commtrace sql RUN...` answers the cell, a statement of SQL, from the runs in variables:
        with several of them, the tables of each are `VARIABLE.table`.
        """
        if (words := line.split())[:1] == ["sql"]:
            display(self._answer(words[1:], cell))
            return
        chosen = self._parsed(line)
        run_cell = self._compiled(cell)
        recording = record(detail=chosen.detail, stacks=chosen.stacks)
        try:
            with recording:
                run_cell()
        finally:
            trace = with_cells(recording.trace())
            facts = {**trace.run, "command": f"In[{_number_of_cell(self._shell)}]"}
            trace = dataclasses.replace(trace, run=facts)
            if chosen.path:
                path = write_trace(trace, chosen.path)
                trace = dataclasses.replace(trace, path=path)
            run = load(trace)
            if chosen.name:
                self._shell.user_ns[chosen.name] = run
        if not chosen.quiet:
            display(run)

    def _parsed(self, line: str) -> Any:
        """Return the options in the line of the magic; a mistake is answered with its use."""
        if asked := _NPROC.search(line):
            num_ranks, first = asked[1] or "4", line.split()[0]
            raise UsageError(
                f"%%commtrace records this process, which is one rank. For {num_ranks} ranks, put "
                "the cell's code in a function, say train, and call\n"
                f"    {first if first.isidentifier() else 'run'} = "
                f"commtrace.launch(train, nproc={num_ranks})\n"
                "or record a script:\n"
                f"    !commtrace run --nproc {num_ranks} -o run.json train.py"
            )
        try:
            chosen = parse_argstring(self.commtrace, line)
        except UsageError as error:
            raise UsageError(f"%%commtrace: {error}\n{_USE}") from None
        if chosen.name and not chosen.name.isidentifier():
            raise UsageError(f"%%commtrace: {chosen.name!r} is no name of a variable\n{_USE}")
        return chosen

    def _answer(self, names: Sequence[str], statement: str) -> pd.DataFrame:
        """Return what a statement selects from runs in variables of the notebook."""
        from commtrace.analyze.sql import Database  # imported late, since few ask

        known = self._shell.user_ns
        runs = {name: known.get(name) for name in names}
        bad = [name for name, run in runs.items() if not isinstance(run, Views)]
        if bad or not runs:
            of_notebook = [name for name, run in known.items() if isinstance(run, Views)]
            raise UsageError(
                f"%%commtrace sql: {', '.join(bad) or 'no variable'} is no run; "
                f"runs are in: {', '.join(of_notebook) or 'no variable'}"
            )
        views = {name: run for name, run in runs.items() if isinstance(run, Views)}
        if len(views) == 1:
            return next(iter(views.values())).sql(statement)
        with Database({name: run.frames() for name, run in views.items()}) as database:
            return database.query(statement)

    @property
    def _shell(self) -> Any:
        return self.shell

    def _compiled(self, cell: str) -> Any:
        """Return the cell as a function without arguments, with the notebook's line numbers."""
        shell = self._shell
        blank = itertools.takewhile(lambda line: not line.strip(), cell.splitlines())
        # Counts the line of the magic and the blank lines that `transform_cell` removes.
        source = "\n" * (1 + len(list(blank))) + shell.transform_cell(cell)
        file = shell.compile.cache(source, _number_of_cell(shell), raw_code=source)
        tree = shell.transform_ast(ast.parse(source, file))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        codes = [shell.compile(tree, file, "exec")]
        if last is not None:
            # This mode displays the value of the expression.
            codes.append(shell.compile(ast.Interactive([last]), file, "single"))

        def run() -> None:
            for code in codes:
                exec(code, shell.user_ns)

        return run


def _number_of_cell(shell: Any) -> int:
    """Return the number of the running cell, from its frame: releases count it differently."""
    frame = sys._getframe(1)
    while frame is not None:
        label = shell.compile.format_code_name(frame.f_code.co_filename)
        if label:
            return int(label[1].strip("In[]"))
        frame = frame.f_back
    return shell.execution_count
