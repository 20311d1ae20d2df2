"""The parts of `scripts/test --long`: what takes too long for every change, and what needs other environments.

Usage: scripts/test --long [PART...] [-- PYTEST ARGUMENT...]
Without a part all of them run. A part that fails stops no other; the exit code is 0 when all passed, 1 when one failed,
2 for wrong usage. The arguments go to the pytest of those parts that run the tests in an environment of their own,
which is a temporary directory: nothing of it is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
KILLS = "50"
"""Of each of the two parts of tests/system/test_kill.py, and of the containers of test_namespaces.py beside it."""
OLD = ("-W", "default::DeprecationWarning", "-W", "default::PendingDeprecationWarning")
"""An old release may use what another package calls deprecated by now."""

Command: TypeAlias = Sequence[str | Path]


class Failed(Exception):
    """A part has failed; the message says how."""


class NotFound(Exception):
    """A part needs something that this machine does not have."""


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        run: raises Failed or NotFound; is given arguments for pytest.
        takes_arguments: whether it can use them.
    """

    run: Callable[[Sequence[str]], None]
    takes_arguments: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run the parts that a command line names; return the exit code."""
    names, given = _split(arguments)
    wrong = _complaint(names, given)
    if wrong is not None:
        print(f"test: {wrong}", file=sys.stderr)
        return 2
    results = {name: _result(name, given, left_out=not names) for name in names or PARTS}
    print("\n== result", flush=True)
    for name, result in results.items():
        print(f"{name}: {result}")
    return int(any(result.startswith("failed") for result in results.values()))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return [*arguments], []
    end = arguments.index("--")
    return [*arguments[:end]], [*arguments[end + 1 :]]


def _complaint(names: Sequence[str], given: Sequence[str]) -> str | None:
    for name in names:
        if name not in PARTS:
            return f"there is no part {name!r} of --long; there are: {', '.join(PARTS)}"
    takers = [name for name, part in PARTS.items() if part.takes_arguments]
    if given and (not names or not set(names) <= set(takers)):
        return f"arguments for pytest go to parts that are named, of these: {', '.join(takers)}"
    return None


def _result(name: str, given: Sequence[str], *, left_out: bool) -> str:
    """Run a part; return the words that follow its name."""
    print(f"\n== {name}", flush=True)
    begin = time.monotonic()
    try:
        PARTS[name].run(given)
    except NotFound as error:
        return f"left out, {error}" if left_out else f"failed, {error}"
    except Failed as error:
        return f"failed, {error}; took {time.monotonic() - begin:.0f} s"
    return f"passed; took {time.monotonic() - begin:.0f} s"


def _call(command: Command, *, directory: Path = ROOT, **variables: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=directory, env={**inherited, **variables}, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        words = " ".join(str(word) for word in command[1:4])
        raise Failed(f"`{Path(command[0]).name} {words} ...` ended with exit code {done.returncode}")


def _module(*words: str) -> Callable[[Sequence[str]], None]:
    """Return a part that runs a module with the Python of .venv."""
    return lambda _: _call([sys.executable, "-m", *words])


def _pytest(*words: str, seconds: int = 900, **variables: str) -> None:
    """Run tests, each for so long at most, before its process is taken for stuck as well."""
    patience = ("--timeout", f"{seconds}", "-o", f"faulthandler_timeout={seconds + 100}")
    _call([sys.executable, "-m", "pytest", "-q", *patience, *words], directory=ROOT, **variables)


def _coverage(_: Sequence[str]) -> None:
    _call([sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "--cov"])


def _kills(_: Sequence[str]) -> None:
    tests = ("tests/system/test_kill.py", "tests/system/test_namespaces.py", "tests/store/sqlite/test_kills.py")
    _pytest(*tests, KILLS=KILLS)


def _threads(_: Sequence[str]) -> None:
    tests = ("tests/sync/test_many_threads.py", "-k", "threads_add_look_and_wait")
    _call([sys.executable, "-m", "pytest", "-q", "--timeout", "900", *tests], SYNC_SECONDS="60")


def _outbox(_: Sequence[str]) -> None:
    _pytest("-s", "tests/outbox/test_kills.py", seconds=6000, OUTBOX_ROWS="100000")


def _cases(_: Sequence[str]) -> None:
    tests = [
        f"tests/{each}.py"
        for each in (
            "simulation/test_seeds",
            "simulation/test_mutants",
            "simulation/test_ordinary",
            "testing/test_killing",
            "service/test_leaving",
            "service/test_reruns_of_all",
            "system/test_disk_full",
        )
    ]
    # Beside them those with examples that hypothesis draws.
    for cases in (tests, ("-m", "hypothesis")):
        _pytest("-n", "auto", "--dist", "worksteal", *cases, JOBS_SERVICE_TEST_CASES="all")


def _replication(_: Sequence[str]) -> None:
    tests = [f"tests/replication/test_{each}.py" for each in ("large", "kills", "chaos")]
    _pytest(
        "-n",
        "auto",
        *tests,
        JOBS_SERVICE_REPLICATION_LARGE="200",
        JOBS_SERVICE_REPLICATION_KILLS="30",
        JOBS_SERVICE_REPLICATION_SEEDS="0:1000",
    )


def _interpreter(version: str) -> str:
    """Return a Python of a version that can make environments: one on PATH, or one of pyenv's or uv's."""
    homes = {
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions": f"{version}.*",
        Path.home() / ".local/share/uv/python": f"cpython-{version}.*",
    }
    kept = [path / "bin/python3" for home, pattern in homes.items() for path in sorted(home.glob(pattern))]
    # What pyenv puts on PATH may be no more than a message that the version is not chosen.
    for python in (shutil.which(f"python{version}"), *map(str, kept)):
        if python is None or not Path(python).exists():
            continue
        asked = [python, "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return python
    raise NotFound(f"there is no Python {version} with its venv module")


def _first_interpreter(versions: Sequence[str]) -> str:
    for version in versions:
        try:
            return _interpreter(version)
        except NotFound:
            continue
    raise NotFound(f"there is none of Python {', '.join(VERSIONS)} with its venv module")


@contextmanager
def _environment(python: str) -> Iterator[tuple[Path, Path]]:
    """Make an empty environment; give its `bin` and a directory beside it, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="jobs-service-long-") as name:
        place = Path(name).resolve()
        place.chmod(0o755)  # a test that works as another user imports from there
        _call([python, "-m", "venv", place / "env"])
        (place / "work").mkdir()
        yield place / "env/bin", place / "work"


def _install(programs: Path, *what: str | Path) -> None:
    _call([programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install", *what])


def _tested(python: str, given: Sequence[str], *pytest: str, lowest: bool = False) -> None:
    """Run the tests in an environment with the newest releases that fit, or with the lowest that we say we take."""
    project = _project()
    with _environment(python) as (programs, work):
        bounds = work / "bounds"
        lines = [f"{name}=={version}" for name, version in lower_bounds(project).items()] if lowest else []
        bounds.write_text("".join(f"{line}\n" for line in lines))
        tools = [each for each in project["optional-dependencies"]["dev"] if Requirement(each).name not in TOO_NEW]
        dev = ["--editable", str(ROOT), *tools] if lowest else ["--editable", f"{ROOT}[dev]"]
        _install(programs, "--constraint", bounds, *dev)
        names = [Requirement(each).name for each in project["dependencies"]]
        shown = "import sys; from importlib.metadata import version as of; print(sys.version.split()[0], 'with', "
        shown += "', '.join(f'{name} {of(name)}' for name in sys.argv[1:]), flush=True)"
        _call([programs / "python", "-c", shown, *names])
        _call([programs / "python", "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *pytest, *given])


TOO_NEW = {"schemathesis"}
"""Tools that want newer releases than the lowest ones; the tests that use them are skipped there."""


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def lower_bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the lowest release of each runtime dependency that a [project] table takes."""
    found = {}
    for each in map(Requirement, project["dependencies"]):
        (found[each.name],) = (bound.version for bound in each.specifier if bound.operator == ">=")
    return found


def _every_test(version: str, given: Sequence[str]) -> None:
    _tested(_interpreter(version), given)


def _lowest(given: Sequence[str]) -> None:
    _tested(_first_interpreter(VERSIONS), given, *OLD, lowest=True)


def _newest(given: Sequence[str]) -> None:
    _tested(_first_interpreter(VERSIONS[::-1]), given)


def _wheel(_: Sequence[str]) -> None:
    """Build what would be published, look at it, and show each file at work where nothing else is installed."""
    with _environment(sys.executable) as (programs, work):
        _install(programs, *_project()["optional-dependencies"]["release"])
        _call([programs / "python", "-m", "build", "--outdir", work, ROOT])
        (wheel,) = work.glob("*.whl")
        (source,) = work.glob("*.tar.gz")
        _call([programs / "python", "-m", "twine", "check", "--strict", wheel, source])
        _call([programs / "check-wheel-contents", wheel])
        for file in (wheel, source):
            with _environment(sys.executable) as (empty, elsewhere):
                print(f"-- {file.name} in an empty environment", flush=True)
                _install(empty, file)
                _call([empty / "python", "-m", "pip", "check"], directory=elsewhere)
                _call([empty / "python", ROOT / "examples/quickstart.py"], directory=elsewhere)


PARTS = {
    "coverage": Part(_coverage),
    "soak": Part(_module("tests.system.soak", "--minutes", "5")),
    "runner-soak": Part(_module("tests.system.runner_soak")),
    "worker-storm": Part(_module("tests.system.worker_storm")),
    "threads": Part(_threads),
    "kills": Part(_kills),
    "outbox": Part(_outbox),
    "cases": Part(_cases),
    "replication": Part(_replication),
    "seeds": Part(_module("tests.simulation", "--random", "--minutes", "10")),
    **{f"python{version}": Part(partial(_every_test, version), takes_arguments=True) for version in VERSIONS},
    "lowest": Part(_lowest, takes_arguments=True),
    "newest": Part(_newest, takes_arguments=True),
    "wheel": Part(_wheel),
}
"""All parts by name, in the order in which they run."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
