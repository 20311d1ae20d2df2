"""What the project file promises about the package."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

import jobs_service

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project() -> dict[str, Any]:
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return metadata


def test_the_package_and_the_project_file_name_the_same_version(project: dict[str, Any]) -> None:
    assert jobs_service.__version__ == project["version"]


def test_every_console_script_names_something_that_can_be_called(project: dict[str, Any]) -> None:
    assert "jobs-service" in project["scripts"]
    for target in project["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (Path(jobs_service.__file__).parent / "py.typed").is_file()
