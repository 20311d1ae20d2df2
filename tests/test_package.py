"""What `import jobs_service` brings: names are loaded when somebody asks for them."""

from __future__ import annotations

import subprocess
import sys

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
