"""The page of architecture: its files and functions are there, it names every folder and child, and files are short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from jobs_service import JobsService
from tests.docs.pages import ROOT, blocks, read, rows, section

PACKAGE = ROOT / "jobs_service"
PAGE = read("docs/architecture.md")
LINES = 600
"""Lines of a file that needs no reason for its length; the page for contributors has the rule."""
REASON = re.compile(rf"more than {LINES} lines|\bone (file|class)\b")
"""In the head of a longer file."""
STEPS = re.findall(r"^\d+\. (.*?)(?=^\d+\. |^#|^$)", section("docs/architecture.md", "Seven flows"), re.M | re.S)


def test_the_glossary_has_at_most_twenty_terms() -> None:
    assert 1 < len(rows(PAGE, "term")) <= 20


def test_there_are_seven_flows() -> None:
    assert len(re.findall(r"^### \d\. ", PAGE, re.MULTILINE)) == 7


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", PAGE)) - {"jobs_service/"})
)
def test_every_file_is_there(name: str) -> None:
    assert (PACKAGE / name).exists()


@pytest.mark.parametrize("step", STEPS)
def test_the_functions_of_a_step_are_in_one_of_its_files(step: str) -> None:
    files = [PACKAGE / name for name in re.findall(r"`([a-z_/]+\.py)`", step)] or [PACKAGE / "layer/queue.py"]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for name in re.findall(r"`(\w+)\(\)`", step):
        assert re.search(rf"def {name}\(", text), name


def test_every_folder_and_module_of_the_package_has_its_row() -> None:
    named = {name.rstrip("/") for row in rows(PAGE, "where") for name in re.findall(r"`([^`]+)`", row[0])}
    kept = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    there = {path.name for path in kept if not path.name.startswith("_")}
    assert named == there


def imported(file: Path) -> set[str]:
    """Return the folders and modules of the package that a file imports from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("jobs_service.")}


def test_no_module_imports_from_a_row_above_its_own() -> None:
    floors = [re.findall(r"`(\w+)(?:\.py|/)`", row[0]) for row in rows(PAGE, "where")]
    height = {name: -place for place, names in enumerate(floors) for name in names}
    above = [
        f"{file.relative_to(PACKAGE)} imports from {name}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if (own := file.relative_to(PACKAGE).parts[0].removesuffix(".py")) in height
        for name in imported(file)
        if height.get(name, min(height.values())) > height[own]
    ]
    assert above == []


def test_a_long_file_says_why() -> None:
    assert f"A file is one noun; over {LINES} lines say why." in read("CONTRIBUTING.md")
    files = [file for folder in ("jobs_service", "tests", "scripts") for file in (ROOT / folder).rglob("*.py")]
    lines = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in files}
    heads = {
        name: ast.get_docstring(ast.parse((ROOT / name).read_text("utf-8"))) for name in lines if lines[name] > LINES
    }
    assert [name for name, head in heads.items() if not REASON.search(head or "")] == []


async def test_the_tree_has_the_children_of_the_picture() -> None:
    [_, picture] = blocks(PAGE, "mermaid")
    drawn = re.findall(r"root(?:\[.*?\])? --> \w+\[\"([\w ]+)<br>", picture)
    async with JobsService("memory:") as jobs:
        running = [child["name"] for child in jobs.supervision()["children"]]
    assert drawn == [*running, "process monitor"]
