"""The site: its reference has every public name, and no link of it leads nowhere."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = {
    "commtrace": "commtrace",
    "dtensor_core": "dtensor_core",
    "dtensor_core.parallel": "parallel",
    "dtensor_core.experimental": "experimental",
    "dtensor_core.debug": "experimental",
    "dtensor_core.testing": "testing",
}


def home(package: ModuleType, name: str) -> str:
    value = getattr(package, name)
    module = getattr(value, "__module__", package.__name__)
    return f"{module}.{getattr(value, '__qualname__', name)}"


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_has_every_public_name(name: str) -> None:
    package = importlib.import_module(name)
    text = (ROOT / "docs" / "reference" / f"{REFERENCE[name]}.md").read_text()
    referred = set(re.findall(r"^::: (\S+)$", text, re.M))
    public = {home(package, each) for each in package.__all__ if not each.isupper()}
    missing = {each for each in public - referred if not each.startswith("torch.")}
    assert missing <= {"commtrace.comm_mode.mode.CommDebugMode"}  # it is commtrace's, and there
    for each in referred:
        module, _, attribute = each.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


@pytest.fixture
def site() -> Any:
    pytest.importorskip("mkdocs", reason="MkDocs' plugins need Python 3.11.5 or newer")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewritten(site: Any, page: str, text: str) -> str:
    pages = {"index.md", "report.md", "notebooks/first_look.ipynb", "reference/commtrace.md"}
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in pages else None)
    config = SimpleNamespace(extra={"repository": "https://example.org/repo"})
    there = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return site.on_page_markdown(text, there, config, files)


@pytest.mark.parametrize(
    ("page", "link", "to"),
    [
        ("index.md", "docs/report.md#links", "report.md#links"),
        ("index.md", "LICENSE", "https://example.org/repo/blob/main/LICENSE"),
        ("notebooks.md", "../notebooks/first_look.ipynb", "notebooks/first_look.ipynb"),
        ("notebooks.md", "../README.md", "index.md"),
        ("reference/commtrace.md", "../report.md", "../report.md"),
        ("report.md", "https://ui.perfetto.dev", "https://ui.perfetto.dev"),
        ("report.md", "#links", "#links"),
    ],
)
def test_links_lead_to_pages_or_into_the_repository(
    site: Any, page: str, link: str, to: str
) -> None:
    assert rewritten(site, page, f"see [it]({link}), there") == f"see [it]({to}), there"


def test_a_link_to_nothing_is_a_warning(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rewritten(site, "report.md", "[gone](../commtrace/gone.py)")
    assert "docs/report.md links to commtrace/gone.py, which does not exist" in caplog.text
