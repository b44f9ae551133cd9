"""HTML for a notebook's cell, which inherits text and colours of the page, light or dark.

The template escapes everything that comes from a trace and makes control characters visible. The
result contains no script.
"""

from __future__ import annotations

from typing import Any

from commtrace.report.offline import ENVIRONMENT

_STYLE = """<style>
.commtrace { font-size: 13px; line-height: 1.45; max-width: 62rem; color: inherit }
.commtrace .about, .commtrace .note { opacity: .72 }
.commtrace .tiles { display: flex; flex-wrap: wrap; gap: 8px; margin: 8px 0 }
.commtrace .tile { border: 1px solid rgba(128, 128, 128, .35); border-radius: 6px;
  padding: 6px 12px 8px; flex: 1 1 8.5rem; max-width: 15rem }
.commtrace .tile b { display: block; font-size: 19px; font-weight: 600; white-space: nowrap }
.commtrace .tile .note { font-size: 12px }
.commtrace .finding { border-left: 3px solid #d97a24; padding: 2px 0 2px 10px; margin: 8px 0 }
.commtrace .finding .cost { float: right; font-weight: 600; margin-left: 12px }
.commtrace code { font-size: 12px; background: rgba(128, 128, 128, .15); color: inherit;
  padding: 1px 4px; border-radius: 3px }
.commtrace dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 14px;
  margin: 8px 0 }
.commtrace dt { opacity: .72; font-weight: 400 } .commtrace dd { margin: 0 }
.commtrace table { border-collapse: collapse; margin: 6px 0 }
.commtrace th, .commtrace td { text-align: left; padding: 2px 18px 2px 0; background: none;
  border: none; border-bottom: 1px solid rgba(128, 128, 128, .25) }
.commtrace th { font-weight: 400; opacity: .72 }
.commtrace .number { text-align: right; font-variant-numeric: tabular-nums }
</style>"""


def html(template: str, **values: Any) -> str:
    """Fill in the template, and wrap it with its style."""
    body = ENVIRONMENT.from_string(template).render(**values)
    return f'{_STYLE}\n<div class="commtrace">\n{body}\n</div>'
