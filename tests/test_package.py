"""What `import jobs_service` brings: names are loaded when somebody asks for them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import jobs_service


def test_submodules_are_attributes_of_the_package_without_an_import_of_their_own() -> None:
    program = "import jobs_service; print(jobs_service.errors.JobsError.__name__, jobs_service.settings.__name__)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["JobsError", "jobs_service.settings"]


@pytest.mark.parametrize("name", ["nothing", "_HOME", "__path_of__", "JobsErrors"])
def test_what_the_package_does_not_have_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'jobs_service' has no attribute '{name}'"):
        getattr(jobs_service, name)


_HOUSE: Final = Path(jobs_service.__file__).parent
_SURFACES: Final = ("cli", "client", "dashboard", "http", "metrics.py")
_BELOW: Final = re.compile(
    r"jobs_service\.(actors|batching|layer|run_data|runner(?!\.commands\b)|store|supervision|testing)\b"
)
"""Modules below the service, without the package of command jobs."""
_PRIVATE: Final = re.compile(
    r"(?<!self)\._(access|context|hub|lifecycle|presence|record|registry|remote|tree|worker)\b"
)
_REACHING: Final = {
    "cli/program.py": "a dry run imitates the store at an address",
    "cli/verbs/copy.py": "copies between two stores at addresses",
    "client/client.py": "subscriptions are those of the service",
    "client/events.py": "subscriptions are those of the service",
    "client/runs.py": "runs the runner here with the jobs of a server",
    "dashboard/bulk_pages.py": "reads the checked jobs",
    "dashboard/figures.py": "reads the sums of many types at once",
    "dashboard/search_page.py": "reads ids of all types by their beginning",
    "dashboard/reads.py": "reads the sums of all types at once",
    "dashboard/small_pages.py": "reads the sums of many types at once, and shows the store's own figures",
    "http/streams.py": "follows records and their watches to send events",
    "http/wire.py": "reads what only the record has",
    "metrics.py": "counts the restarts of the whole process",
}
"""Files of the surfaces that reach below the service, with the reason."""


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_surfaces_ask_the_service_and_reach_nothing_below_it() -> None:
    found = {
        str(file.relative_to(_HOUSE))
        for surface in _SURFACES
        for file in (sorted((_HOUSE / surface).rglob("*.py")) or [_HOUSE / surface])
        if any(map(_BELOW.match, _imported(file))) or _PRIVATE.search(file.read_text(encoding="utf-8"))
    }
    assert found == {*_REACHING}
