"""A small project with copies of the real scripts, built by a backend of its own, so that nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)
COMMANDS = [*SCRIPTS, ROOT / ".ci/run"]
PYTHON_NAMES = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
HANG = 280  # seconds; only ends a run that would never end

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small-project"
version = "1.0"

[tool.ruff]
line-length = 120

[tool.mypy]
strict = true
files = ["small"]

[tool.coverage.run]
source_pkgs = ["small"]

[tool.coverage.report]
fail_under = 90

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
asyncio_default_fixture_loop_scope = "function"
"""

BACKEND = '''\
"""Builds the small project, and lets a test see, stop and break it."""

import zipfile
from pathlib import Path


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with open("builds", "a") as builds:
        builds.write("build\\n")
    if Path("gate").exists():
        Path("gate").read_text()
    if Path("broken").exists():
        raise RuntimeError("broken on purpose")
    info = "small_project-1.0.dist-info"
    files = {
        "small_project.pth": f"{Path.cwd()}\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: small-project\\nVersion: 1.0\\nProvides-Extra: dev\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: small\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\njobs-service = small:main\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = "small_project-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return name
'''

PACKAGE = '''\
"""A package that has one command."""

import sys


def main() -> int:
    """Print the arguments; 7 tells this exit code from all others."""
    print(sys.argv[1:])
    return 7
'''

TESTS = '''\
"""Reaches all of the package."""

import pytest

import small


def test_command_answers_seven(capsys: pytest.CaptureFixture[str]) -> None:
    assert small.main() == 7
    capsys.readouterr()


def test_another() -> None:
    assert True
'''


class Copy:
    """A temporary directory with the real scripts around the small project, and what a bare machine has on its PATH."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "a copy"
        self.path = directory / "bin"
        self.elsewhere = directory / "elsewhere"
        self.temporary = directory / "tmp"
        for made in (self.root / "scripts", self.root / ".ci", self.path, self.elsewhere, self.temporary):
            made.mkdir(parents=True)
        for command in COMMANDS:
            shutil.copy2(command, self.root / command.relative_to(ROOT))
        self.write("pyproject.toml", PYPROJECT)
        self.write("backend.py", BACKEND)
        self.write("small/__init__.py", PACKAGE)
        self.write("tests/test_small.py", TESTS)
        self.write("examples/quickstart.py", "import sys\n\nimport small\n\nsys.exit(small.main())\n")
        for name in PYTHON_NAMES:
            self.add_command(name, "exit 1")

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def add_command(self, name: str, shell: str) -> None:
        """Put a command on the PATH, before the machine's own of the same name."""
        command = self.path / name
        command.write_text(f"#!/bin/sh\n{shell}\n")
        command.chmod(0o755)

    def add_python(self, name: str, *, prelude: str = "") -> None:
        self.add_command(name, f'{prelude}\nexec "{sys.executable}" "$@"')

    def add_environment(self) -> None:
        """Make the .venv of somebody who has the tools already: it sees the packages of the running Python."""
        self.add_python("python3")
        builder = venv.EnvBuilder(symlinks=True)
        builder.create(self.root / ".venv")
        (packages,) = (self.root / ".venv").glob("lib/python*/site-packages")
        (packages / "tools.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "HOME": str(self.elsewhere),
            "TMPDIR": str(self.temporary),
            "LC_ALL": "C",
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "MYPY_CACHE_DIR": str(self.temporary / "mypy"),
        }

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / command, *arguments],
            cwd=self.elsewhere,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(command, *arguments) as process:
            try:
                stdout, stderr = process.communicate(timeout=HANG)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    @property
    def builds(self) -> int:
        """How often the small project was built, that is, installed or tried to be."""
        log = self.root / "builds"
        return len(log.read_text().splitlines()) if log.exists() else 0
