"""The commands in scripts/ and .ci/ on a bare machine: set up once, whoever asks, and say in one line what is missing.

They run in a temporary copy with a small project that is built by a backend of its own, so nothing is downloaded. Those
that set up environments take long, and are marked: they run when a script has changed (see conftest.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)
COMMANDS = [*SCRIPTS, ROOT / ".ci/run"]
PYTHON_NAMES = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
HANG = 280  # seconds; only ends a run that would never end

pytestmark = pytest.mark.timeout(300)  # some of these make environments, which takes long on a busy machine

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


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    made = Copy(tmp_path)
    yield made
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy that is set up already, which several tests use one after the other."""
    directory = tmp_path_factory.mktemp("ready")
    made = Copy(directory)
    made.add_environment()
    assert made.run("scripts/setup-env", "dev").returncode == 0
    yield made
    shutil.rmtree(directory)


@pytest.fixture
def unchanged(ready: Copy) -> Iterator[Copy]:
    """The same, without what other tests have added to it."""
    yield ready
    assert ready.builds == 1, "nothing has set it up again"
    for name in (
        "small/more.py",
        "scripts/bench.py",
        "scripts/long.py",
        "tests/__init__.py",
        "tests/simulation/__main__.py",
    ):
        ready.remove(name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.name)
class TestEveryCommand:
    def test_is_executable_and_finds_its_bash(self, command: Path) -> None:
        assert os.access(command, os.X_OK)
        assert command.read_text().startswith("#!/usr/bin/env bash\n")

    def test_stops_at_the_first_error_from_its_first_statement_on(self, command: Path) -> None:
        statements = [line for line in command.read_text().splitlines() if line and not line.startswith("#")]
        assert statements[0] == "set -euo pipefail"

    def test_is_valid_bash(self, command: Path) -> None:
        checked = subprocess.run(["bash", "-n", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stderr) == (0, "")

    @pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
    def test_has_no_finding_of_shellcheck(self, command: Path) -> None:
        checked = subprocess.run(["shellcheck", command], capture_output=True, text=True, timeout=HANG)
        assert (checked.returncode, checked.stdout) == (0, "")


def test_without_a_recent_python_one_line_says_what_to_install(copy: Copy) -> None:
    done = copy.run("scripts/setup-env")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "found no Python 3.11 or newer" in done.stderr
    assert not (copy.root / ".venv").exists()


def test_a_python_that_cannot_make_environments_gives_one_line_that_names_the_package(copy: Copy) -> None:
    (copy.elsewhere / "ensurepip.py").write_text("raise ModuleNotFoundError('ensurepip')\n")
    copy.add_python("python3.12", prelude=f'export PYTHONPATH="{copy.elsewhere}"')
    done = copy.run("scripts/setup-env")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "python3.12 cannot make virtual environments" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not (copy.root / ".venv").exists()


def test_an_unknown_profile_is_wrong_usage(copy: Copy) -> None:
    done = copy.run("scripts/setup-env", "everything")
    assert (done.returncode, done.stderr) == (2, "setup-env: usage: scripts/setup-env [runtime|dev|docs]\n")


@pytest.mark.scripts
def test_continuous_integration_installs_python_where_there_is_none_and_then_checks(copy: Copy) -> None:
    copy.add_python("python-from-apt")
    copy.add_command("id", "echo 0")
    copy.add_command("strace", "true")
    copy.add_command("npm", f'echo "$@" >>"{copy.root}/npm"')
    copy.add_command("apt-get", f'echo "$@" >>"{copy.root}/apt"; cd "{copy.path}"; cp python-from-apt python3.12')
    checks = 'scripts/setup-env dev && echo "checked $1 with $(.venv/bin/pip --version)"'
    copy.write("scripts/test", f"#!/bin/sh\n{checks}\n")
    copy.write("scripts/docs", "#!/bin/sh\necho built\n")
    done = copy.run(".ci/run")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^built|^checked .*? with pip", done.stdout, re.MULTILINE) == [
        "checked  with pip",
        "built",
        "checked --long with pip",
    ]
    assert f"{copy.root.resolve()}/.venv/" in done.stdout
    assert (copy.root / "apt").read_text().splitlines() == [
        "-q update",
        "-q -y install --no-install-recommends python3 python3-venv",
    ]
    assert "pouchdb-server@4.2.0" in (copy.root / "npm").read_text()
    assert copy.builds == 1


def test_continuous_integration_without_python_and_without_root_fails_with_the_one_line(copy: Copy) -> None:
    copy.add_command("id", "echo 1000")
    done = copy.run(".ci/run")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)


@pytest.mark.scripts
def test_an_environment_whose_python_is_gone_is_made_anew(copy: Copy) -> None:
    copy.add_environment()
    assert copy.run("scripts/setup-env").returncode == 0
    for name in (copy.root / ".venv/bin").glob("python*"):
        name.unlink()
    (copy.root / ".venv/bin/python").symlink_to(copy.path / "gone")
    done = copy.run("scripts/quickstart")
    assert done.returncode == 7, done.stderr
    assert "making the virtual environment .venv with python3" in done.stderr
    assert copy.builds == 2


@pytest.mark.scripts
def test_two_set_ups_at_once_install_once(copy: Copy) -> None:
    copy.add_environment()
    with copy.start("scripts/setup-env") as one, copy.start("scripts/setup-env") as other:
        errors = [process.communicate(timeout=HANG)[1] for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], errors
    assert copy.builds == 1


@pytest.mark.scripts
def test_a_set_up_waits_while_another_one_works(copy: Copy) -> None:
    copy.add_environment()
    with (copy.root / ".venv/setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = copy.start("scripts/setup-env")
        assert process.stderr is not None
        assert process.stderr.readline() == "setup-env: waiting for another set-up of this directory\n"
        assert copy.builds == 0
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0, errors
    assert copy.builds == 1


@pytest.mark.scripts
def test_an_installation_that_was_killed_is_repeated(copy: Copy) -> None:
    copy.add_environment()
    gate = copy.root / "gate"
    os.mkfifo(gate)
    process = copy.start("scripts/setup-env")
    with gate.open("w"):  # opens when the backend has begun to read, in the middle of the installation
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=HANG)
    gate.unlink()
    done = copy.run("scripts/quickstart")
    assert done.returncode == 7, done.stderr
    assert copy.builds == 2


@pytest.mark.scripts
def test_an_installation_that_failed_says_so_and_is_repeated(copy: Copy) -> None:
    copy.add_environment()
    copy.write("broken", "")
    failed = copy.run("scripts/setup-env")
    assert failed.returncode == 1
    assert "broken on purpose" in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("setup-env: installing failed")
    (copy.root / "broken").unlink()
    assert copy.run("scripts/setup-env").returncode == 0
    assert copy.builds == 2


@pytest.mark.scripts
def test_what_is_installed_is_installed_again_only_when_it_must_be(copy: Copy) -> None:
    copy.add_environment()
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    again = copy.run("scripts/setup-env", "runtime")
    assert (again.returncode, again.stdout, again.stderr, copy.builds) == (0, "", "", 1)
    assert copy.run("scripts/setup-env", "dev").returncode == 0
    assert copy.builds == 2, "what development needs was missing"
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    assert copy.builds == 2, "development has all that running needs"
    copy.write("pyproject.toml", PYPROJECT + "# changed\n")
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    assert copy.builds == 3, "pyproject.toml has changed"
    moved = copy.root.with_name("moved")
    copy.root = copy.root.rename(moved)
    assert copy.run("scripts/quickstart").returncode == 7
    assert copy.builds == 4, "the directory has moved"


@pytest.mark.scripts
def test_quickstart_hands_its_arguments_to_the_command_and_returns_its_exit_code(unchanged: Copy) -> None:
    done = unchanged.run("scripts/quickstart", "--name", "two words", "")
    assert (done.returncode, done.stdout) == (7, "['quickstart', '--name', 'two words', '']\n"), done.stderr


@pytest.mark.scripts
def test_bench_prints_only_figures_and_stays_in_the_directory_of_its_caller(unchanged: Copy) -> None:
    unchanged.write("scripts/bench.py", "import os, sys\nimport small\nprint(sys.argv[1:], os.getcwd())\n")
    done = unchanged.run("scripts/bench", "--json")
    assert (done.returncode, done.stdout) == (0, f"['--json'] {unchanged.elsewhere.resolve()}\n"), done.stderr


@pytest.mark.scripts
def test_simulate_hands_its_arguments_to_the_simulation_and_returns_its_exit_code(unchanged: Copy) -> None:
    unchanged.write("tests/__init__.py", "")  # before any other package of this name
    unchanged.write("tests/simulation/__main__.py", "import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(7)\n")
    done = unchanged.run("scripts/simulate", "--seed", "7")
    assert (done.returncode, done.stdout) == (7, f"['--seed', '7'] {unchanged.root.resolve()}\n"), done.stderr


@pytest.mark.scripts
def test_test_hands_the_arguments_behind_long_to_the_long_tests_and_returns_their_exit_code(unchanged: Copy) -> None:
    unchanged.write("scripts/long.py", "import os, sys\nprint(sys.argv[1:], os.getcwd())\nsys.exit(7)\n")
    done = unchanged.run("scripts/test", "--long", "wheel", "--", "two words")
    assert (done.returncode, done.stdout) == (7, f"['wheel', '--', 'two words'] {unchanged.root.resolve()}\n"), (
        done.stderr
    )


def headings(output: str) -> list[str]:
    return [line.removeprefix("== ") for line in output.splitlines() if line.startswith("== ")]


@pytest.mark.scripts
def test_test_runs_every_phase_and_says_how_long_it_took(unchanged: Copy) -> None:
    done = unchanged.run("scripts/test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert headings(done.stdout) == ["environment", "ruff check", "ruff format", "mypy", "pytest", "result"]
    assert " 2 passed in " in done.stdout
    assert "Required test coverage of 90.0% reached" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all phases passed; took ")


@pytest.mark.scripts
def test_test_names_the_phases_that_failed_and_runs_the_others(unchanged: Copy) -> None:
    unchanged.write("small/more.py", "import os\n\n\ndef unused() -> int:\n    return ''\n")
    done = unchanged.run("scripts/test", "-n", "0", "-k", "seven or nothing", "tests/test_small.py")
    assert done.returncode == 1
    assert headings(done.stdout) == ["environment", "ruff check", "ruff format", "mypy", "pytest", "result"]
    assert " 1 passed, 1 deselected in " in done.stdout, "the arguments go to pytest"
    assert "coverage" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: ruff check, ruff format, mypy; took ")


@pytest.mark.scripts
def test_test_fails_when_coverage_is_below_the_floor(unchanged: Copy) -> None:
    unchanged.write("small/more.py", "def unused() -> int:\n    return 1\n")
    done = unchanged.run("scripts/test")
    assert done.returncode == 1
    assert " 2 passed in " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("failed: pytest; took ")
