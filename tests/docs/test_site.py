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
# Packages and their pages of the reference.
REFERENCE = {
    "commtrace": "commtrace",
    "commtrace.analyze": "analyze",
    "commtrace.figures": "figures",
    "commtrace.exporters": "exchange",
    "commtrace.importers": "exchange",
    "dtensor_core": "dtensor_core",
    "dtensor_core.parallel": "parallel",
    "dtensor_core.experimental": "experimental",
    "dtensor_core.debug": "experimental",
    "dtensor_core.random": "random",
    "dtensor_core.testing": "testing",
}
# Public names that no `__all__` lists, and their pages.
NAMES = {
    "commtrace.integrations.accelerate.CommtraceTracker": "integrations",
    "commtrace.integrations.lightning.CommtraceLightningCallback": "integrations",
    "commtrace.integrations.transformers.CommtraceTrainerCallback": "integrations",
    "commtrace.pytest_plugin.fixture.Comms": "pytest",
    "dtensor_core.observe.Reason": "observe",
    "dtensor_core.observe.current": "observe",
    "dtensor_core.observe.listening": "observe",
}
# Errors that are caught where they are raised, and reach no user.
INTERNAL_ERRORS = {
    "commtrace.analyze.replay.context.NothingNamedError",
    "commtrace.importers.plain_pickle.BrokenPickleError",
    "commtrace.importers.plain_pickle.ForbiddenNameError",
    "commtrace.tracefile.reading.DamageError",
    "commtrace.tracefile.reading.MoreThanError",
}


def home(package: ModuleType, name: str) -> str:
    """Return the module and name of the definition; a constant's module is the package."""
    value = getattr(package, name)
    module = getattr(value, "__module__", package.__name__)
    return f"{module}.{getattr(value, '__qualname__', name)}"


def referred(page: str = "*") -> set[str]:
    """Return the names that a page of the reference, or all of it, documents."""
    pages = sorted((ROOT / "docs" / "reference").glob(f"{page}.md"))
    assert pages
    return {name for path in pages for name in re.findall(r"^::: (\S+)$", path.read_text(), re.M)}


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_has_every_public_name(name: str) -> None:
    package = importlib.import_module(name)
    own_constants = {"DEVICE_TYPE", "NUM_DEVICES"} if name == "dtensor_core.testing" else set()
    public = {home(package, each) for each in {*package.__all__} - own_constants}
    missing = public - referred(REFERENCE[name])
    missing = {each for each in missing if not each.startswith("torch.")}
    assert missing <= {"commtrace.comm_mode.mode.CommDebugMode"}  # it is commtrace's, and there


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_has_names_without_a_list(name: str) -> None:
    assert name in referred(NAMES[name])


def test_the_reference_documents_what_exists() -> None:
    for each in sorted(referred()):
        module, _, attribute = each.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), each


def test_the_reference_of_commtrace_begins_with_what_is_used_first() -> None:
    text = (ROOT / "docs" / "reference" / "commtrace.md").read_text("utf-8")
    names = [name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", text, re.M)]
    assert names[:3] == ["record", "load", "Run"]


def errors_of(package: str) -> set[str]:
    """Return the public classes of errors and warnings that a package defines."""
    return {
        ".".join([*path.relative_to(ROOT).with_suffix("").parts, name]).replace(".__init__", "")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(
            r"^class ([A-Z]\w*(?:Error|Warning))\(", path.read_text("utf-8"), re.M
        )
    }


@pytest.mark.parametrize("package", ["commtrace", "dtensor_core"])
def test_the_reference_has_every_error(package: str) -> None:
    found = errors_of(package)
    assert len(found) > 10
    assert found - referred() - INTERNAL_ERRORS == set()


def test_internal_errors_are_listed_while_they_exist() -> None:
    assert errors_of("commtrace") >= INTERNAL_ERRORS


def mentioned(text: str) -> set[str]:
    """Return the objects of the packages that a document names in full, by their definitions."""
    found = set()
    for name in re.findall(r"`((?:commtrace|dtensor_core)(?:\.[A-Za-z]\w*)+)(?=[`(\[])", text):
        module, _, attribute = name.rpartition(".")
        try:
            package = importlib.import_module(module)
        except ImportError:  # a method, whose class is in the reference
            continue
        if not isinstance(getattr(package, attribute, package), ModuleType):
            found.add(home(package, attribute))
    return found


DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_that_users_are_pointed_to_are_in_the_reference(path: Path) -> None:
    assert mentioned(path.read_text("utf-8")) - referred() == set()


def test_a_name_without_a_reference_is_noticed() -> None:
    text = "`commtrace.units.text_of_bytes(3)`, `commtrace.analyze`, `dtensor_core.api.nothing`"
    assert mentioned(text) == {"commtrace.units.text_of_bytes"}
    assert mentioned("`commtrace.load`") == {"commtrace.views.run.load"} <= referred()


@pytest.fixture
def site() -> Any:
    pytest.importorskip("mkdocs", reason="MkDocs' plugins need Python 3.11.5 or newer")
    spec = importlib.util.spec_from_file_location(
        "site_hooks", ROOT / "docs" / "generate" / "site.py"
    )
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
