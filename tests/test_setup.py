"""A clone sets itself up: all dependencies are pinned, and what the documents name exists."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def pins(text: str) -> dict[str, Requirement]:
    """Parse the pins that apply to this interpreter, by name."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    return {
        canonicalize_name(pin.name): pin
        for pin in requirements
        if pin.marker is None or pin.marker.evaluate()
    }


def is_pinned_torch() -> bool:
    """True unless `make test TORCH=...` tests another torch, which has requirements of its own."""
    pin = pins((ROOT / "constraints.txt").read_text())["torch"]
    return pin.specifier.contains(metadata.version("torch"))


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Names of all direct and indirect requirements of the installed distribution `name`."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {canonicalize_name(name)}
    if names == {"torch"} and not is_pinned_torch():
        return names
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            names |= needed(requirement.name, frozenset(requirement.extras), seen)
    return names


def unpinned(constraints: str) -> set[str]:
    """Requirements of `pip install -e '.[dev]'` that `constraints` does not pin exactly."""
    pinned = pins(constraints)
    exact = {name for name, pin in pinned.items() if re.fullmatch(r"==[^*]+", str(pin.specifier))}
    return needed("commtrace", frozenset({"dev"}), set()) - exact - {"commtrace"}


def targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def is_installed() -> bool:
    """True in an environment that `make` set up."""
    try:
        metadata.distribution("commtrace")
    except metadata.PackageNotFoundError:
        return False
    return True


installed = pytest.mark.skipif(not is_installed(), reason="commtrace is not installed here")


@installed
def test_every_package_of_the_setup_is_pinned() -> None:
    assert not unpinned((ROOT / "constraints.txt").read_text())


@installed
def test_a_missing_pin_is_noticed() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert unpinned(constraints.replace("torch==", "torch>=")) == {"torch"}
    assert unpinned(re.sub("^pluggy.*$", "", constraints, flags=re.M)) == {"pluggy"}


def environment(*variables: str) -> str:
    """Folder in which `make test` with these variables installs what it needs."""
    make = ["make", "--dry-run", "--always-make", "test", *variables]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (line,) = [line for line in done.stdout.splitlines() if " -m venv " in line]
    return line.split()[-1]


def test_each_torch_and_each_python_has_an_environment() -> None:
    version = f"python-{platform.python_version()}"
    python = f"PYTHON={sys.executable}"
    assert environment("PYTHON=python3", "TORCH=") == ".venv"
    assert environment("PYTHON=python3", "TORCH=2.15.0") == ".venv-torch-2.15.0"
    assert environment(python, "TORCH=") == f".venv-{version}"
    assert environment(python, "TORCH=2.15.0") == f".venv-torch-2.15.0-{version}"


def test_files_that_an_installation_copies_are_installed_again_when_they_change() -> None:
    _, _, section = (ROOT / "pyproject.toml").read_text().partition("wheel.force-include]\n")
    copied = re.findall(r'^"([^"]+)" = ', section.partition("\n\n")[0], re.M)
    assert len(copied) == 3
    for path in copied:
        make = ["make", "--dry-run", f"--what-if={path}", "test", "PYTHON=python3", "TORCH="]
        done = subprocess.run(
            make, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        assert " -m venv " in done.stdout, path


def test_make_alone_lists_every_target_that_people_use() -> None:
    result = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    listed = set(re.findall(r"^  make ([a-z-]+) ", result.stdout, re.M))
    assert {"demo", "test", "check", "bench", "docs"} <= listed <= targets()


def test_the_ci_script_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_commands_exist(document: Path) -> None:
    assert not dead_ends(document.read_text(), document.parent)


def test_a_dead_link_and_an_unknown_target_are_noticed() -> None:
    text = "[a](nowhere.md), ![b](no.png), `make coffee`, [fine](README.md), `make test`"
    assert dead_ends(text, ROOT) == {"nowhere.md", "no.png", "make coffee"}


def dead_ends(text: str, folder: Path) -> set[str]:
    """Relative links without a target, and make targets that do not exist."""
    links = {link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link}
    asked = set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.M))
    return {link for link in links if not (folder / link).exists()} | {
        f"make {target}" for target in asked - targets()
    }
