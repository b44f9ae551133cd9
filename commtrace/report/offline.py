"""An HTML file that opens without a network: a template with everything it needs inside.

What the scripts read and plotly.js (whole, for none of its smaller bundles draws an icicle) travel
deflated (`packed`) and are unpacked by the browser; plotly.js and our own script are each named by
their hash in the page's content policy, which allows nothing else to run and nothing to be fetched,
so that even a name that slipped through escaping could do no harm.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from commtrace.escaping import visible_value


def offline_page(
    template: str, *, style: str, scripts: Sequence[str], data: Mapping[str, Any], **shown: Any
) -> str:
    """A template that extends `offline.html`, with what it shows, its scripts and their `data`."""
    environment = Environment(
        loader=PackageLoader("commtrace.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script, plotly = "\n".join(map(source, scripts)), get_plotlyjs()
    return environment.get_template(template).render(
        policy=content_policy(script, plotly),
        style=Markup(style),
        script=Markup(script),
        plotly=packed(plotly),
        data=packed(json.dumps(data, separators=(",", ":"), default=_plain)),
        **shown,
    )


def source(name: str) -> str:
    """The text of a script or a style sheet."""
    return (files("commtrace.report") / "templates" / name).read_text("utf-8")


def packed(text: str) -> str:
    """`text`, deflated and in base64: the same for the same text.

    >>> gzip.decompress(base64.b64decode(packed("a text"))).decode()
    'a text'
    """
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def content_policy(*scripts: str) -> str:
    """A policy under which nothing but these scripts runs, and nothing is loaded from anywhere."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _plain(value: Any) -> Any:
    """What JSON has for a number of numpy."""
    return value.item()
