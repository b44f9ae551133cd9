"""Offline HTML pages: templates with all of their scripts, styles and data embedded.

The data of the scripts and plotly.js (the full bundle, because no smaller bundle draws icicles) are
embedded compressed (`packed`) and unpacked by the browser. The page's content security policy
allows only plotly.js and our own script, each by its hash, and no network access, so that even a
name that escaped escaping could do no harm.
"""

from __future__ import annotations

import base64
import functools
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

ENVIRONMENT = Environment(
    loader=PackageLoader("commtrace.report"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=visible_value,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates escape everything and make control characters visible; no value may be missing."""


def offline_page(
    template: str, *, style: str, scripts: Sequence[str], data: Mapping[str, Any], **shown: Any
) -> str:
    """Render a template that extends `offline.html`, with its values, scripts and their `data`."""
    script = "\n".join(map(source, scripts))
    return ENVIRONMENT.get_template(template).render(
        policy=content_policy(script, get_plotlyjs()),
        # Only texts of this package are exempt from escaping; no value of a trace is.
        style=Markup(style),
        script=Markup(script),
        plotly=packed_plotly(),
        data=packed(json.dumps(data, separators=(",", ":"), default=_plain)),
        **shown,
    )


@functools.cache
def packed_plotly() -> str:
    """Compress plotly.js once for all pages that a process writes."""
    return packed(get_plotlyjs())


def source(name: str) -> str:
    """Return the text of a script or a style sheet."""
    return (files("commtrace.report") / "templates" / name).read_text("utf-8")


def packed(text: str) -> str:
    """Compress `text` with gzip and encode it in base64, deterministically.

    >>> gzip.decompress(base64.b64decode(packed("a text"))).decode()
    'a text'
    """
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def content_policy(*scripts: str) -> str:
    """Return a content security policy that allows only these scripts, and loads nothing."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _plain(value: Any) -> Any:
    """Convert a NumPy number for JSON."""
    return value.item()
