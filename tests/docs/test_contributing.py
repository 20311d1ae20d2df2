"""The page for contributors: the files that it tells them to touch are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, rows, section

LISTS = ("A store", "A verb of the command line", "An operation", "A mutant")


@pytest.mark.parametrize("heading", LISTS)
def test_the_files_of_a_list_are_there(heading: str) -> None:
    found = rows(section("CONTRIBUTING.md", heading), "file")
    assert len(found) >= 4
    for row in found:
        folder = Path()
        for name in re.findall(r"`([^`]+)`", row[0]):
            # A name without a folder is beside the one before it.
            path = Path(name) if "/" in name or name.endswith(".md") or name == "pyproject.toml" else folder / name
            folder = path.parent
            if not re.search("NAME|VERB", name):
                assert (ROOT / path).exists(), name
