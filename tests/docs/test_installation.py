"""The page of installation names each dependency, as the project file takes it, and all that is imported is one."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT, examples, read, rows

INSTALL = examples("docs/installation.md", "sh")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BOUNDS = {
    needed.name: [bound.version for bound in needed.specifier if bound.operator == ">="]
    for needed in map(Requirement, PROJECT["dependencies"])
}
EXTRAS = PROJECT["optional-dependencies"]
NOT_DECLARED = {"pydantic_core", "msgspec"}
"""Each release of pydantic takes one release of the one; a program whose arguments are the other's has it already."""


FOR_DEVELOPERS = {"dev", "docs", "release"}


def test_every_dependency_has_its_row_with_the_oldest_release_that_is_taken() -> None:
    table = {name.strip("`"): [oldest] for name, oldest, _ in rows(read("docs/installation.md"), "dependency")}
    assert table == BOUNDS


def test_what_is_imported_is_a_dependency() -> None:
    imported = {
        name.partition(".")[0]
        for file in (ROOT / "jobs_service").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    foreign = imported - set(sys.stdlib_module_names) - {"jobs_service"} - NOT_DECLARED
    distributions = packages_distributions()
    extras = {Requirement(text).name for extra in EXTRAS.keys() - FOR_DEVELOPERS for text in EXTRAS[extra]}
    # Of an extra that is not installed here, the name of what is imported is that of its distribution.
    allowed = set(BOUNDS) | extras | {"yarl", "markupsafe"}  # aiohttp's and jinja2's own
    # A namespace, such as OpenTelemetry's, is filled by several distributions.
    names = {name: {canonicalize_name(each) for each in distributions.get(name, [name])} for name in foreign}
    assert {name for name, found in names.items() if not found & allowed} == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def test_what_it_says_to_install_is_the_project() -> None:
    assert [text.split("#")[0].split() for text in INSTALL] == [["pip", "install", "."]]
    assert (ROOT / "pyproject.toml").is_file()
