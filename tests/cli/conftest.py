"""A store of its own for every test, and the command line in this process."""

from __future__ import annotations

import functools
import io
import sys
from pathlib import Path
from typing import Protocol

import pytest
import typer

from jobs_service.cli import main
from jobs_service.cli.app import application
from tests.cli.support import Ended


class Invoke(Protocol):
    """Runs one command line in this process."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ended: ...


@pytest.fixture(autouse=True)
def _nothing_configured(own_logging: None) -> None:
    """Undo what the program does to the process's logging."""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JOBS_SERVICE_STORE", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The address of a store that is not there yet."""
    return f"lmdb:{tmp_path / 'store'}"


@functools.cache
def _command() -> object:
    """Return all verbs put together, which takes longer than to run most of them, and is the same every time."""
    return typer.main.get_command(application())


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run one command line in this process, in a directory of its own."""
    command = _command()
    monkeypatch.setattr(typer.main, "get_command", lambda _: command)

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        given = tmp_path / "standard-input"
        given.write_bytes(stdin)
        with open(given, "rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            capsys.readouterr()  # What the test itself has logged is not the program's.
            code = main(arguments)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def email(invoke: Invoke, store: str) -> str:
    """The address of a store with the type `email`."""
    assert invoke("types", "set", "email", "60", "--store", store).code == 0
    return store
