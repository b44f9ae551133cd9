"""A figure that stays visible when its notebook is exported.

Jupyter and VS Code render plotly's data. Other viewers, such as `jupyter nbconvert --to html`, use
the HTML beside it: the figure's data, compressed, and a script that draws it. plotly.js itself
(compressed, 2 MB) is in the output of one cell of a notebook: the first that shows a figure, and
again that one if it is run again. A renderer that the user chose is left alone.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from commtrace.report.offline import packed, packed_plotly

PLOTLY = "application/vnd.plotly.v1+json"

_HTML = Markup("""\
<div id="{id}" class="commtrace-figure" style="min-height: {height}px">{title}: \
this figure needs a script that is in the output of another cell. Run all cells again.</div>
{library}<script>
(async () => {{
  const unpack = (text) => new Response(
    new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))])
      .stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const loaded = () => new Promise((done) => document.readyState === "loading"
    ? document.addEventListener("DOMContentLoaded", done) : done());
  window.commtracePlotly ??= loaded().then(async () => {{
    const script = document.querySelector("script.commtrace-plotly");
    if (script && !window.Plotly)
      new Function("define", "module", "exports", await unpack(script.textContent)).call(window);
    return window.Plotly;
  }});
  const plotly = await window.commtracePlotly, place = document.getElementById("{id}");
  if (!plotly) return;
  const {{data, layout}} = JSON.parse(await unpack("{figure}"));
  place.textContent = "";
  plotly.newPlot(place, data, layout, {{responsive: true, displaylogo: false}});
}})();
</script>
""")
_LIBRARY = Markup('<script type="text/plain" class="commtrace-plotly">{}</script>\n')

_HEIGHT = 450
"""plotly's height of figures that state none."""


class Drawn(go.Figure):
    """A plotly figure whose cell also has HTML."""

    def _ipython_display_(self) -> None:
        from IPython.display import display  # not installed without notebooks

        bundle: dict[str, Any] = self._repr_mimebundle_()
        if {*bundle} != {PLOTLY} or "PLOTLY_RENDERER" in os.environ:
            super()._ipython_display_()  # pyright: ignore[reportAttributeAccessIssue]
            return
        marked = str(self.layout.title.text or "Figure")  # pyright: ignore[reportAttributeAccessIssue]
        title = Markup(marked).striptags()
        height = self.layout.height or _HEIGHT  # pyright: ignore[reportAttributeAccessIssue]
        drawn = bundle[PLOTLY]
        html = _HTML.format(
            id=f"commtrace-{uuid.uuid4().hex}",
            height=height,
            title=title,
            library=_LIBRARY.format(packed_plotly()) if _carrier.takes() else "",
            figure=packed(json.dumps({"data": drawn["data"], "layout": drawn["layout"]})),
        )
        display({**bundle, "text/html": html, "text/plain": title}, raw=True)


class _Carrier:
    """The cell whose output has plotly.js, and the message that ran it."""

    cell = ""
    message = ""

    def takes(self) -> bool:
        """Return whether the figure that is being displayed must carry plotly.js."""
        from IPython.core.getipython import get_ipython

        shell: Any = get_ipython()
        sent = getattr(shell, "get_parent", dict)() or {}
        # Front ends name the cell; others are told apart by their source.
        cell = sent.get("metadata", {}).get("cellId") or sent.get("content", {}).get("code", "")
        message = sent.get("header", {}).get("msg_id", "none")
        is_first, is_run_again = not self.message, cell == self.cell and message != self.message
        if is_first or is_run_again:
            self.cell, self.message = cell, message
        return is_first or is_run_again


_carrier = _Carrier()
