"""Another process that has an embedded store open and does one thing at a time, while whoever asks for it waits.

`python -m tests.store.lmdb.foreign_process`; the tests' side of it is `ForeignProcess`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from jobs_service.store import Transaction
from tests.contract.model import Operation
from tests.contract.programs import Run
from tests.store.lmdb.lmdb_process import ROOT
from tests.store.lmdb.threadless import ThreadlessStore


class ForeignProcess:
    """A context manager: the process lives within it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.lmdb.foreign_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def open(self, path: Path) -> None:
        """Open a store."""
        self._ask("open", path)

    def close(self) -> None:
        """Close it."""
        self._ask("close")

    def run(self, number: int, program: list[Operation]) -> tuple[bytes, Run]:
        """Run a program in a transaction; return its versionstamp and what it was."""
        stamp, run = self._ask("run", number, program)
        return stamp, run

    def begin(self, number: int, program: list[Operation]) -> None:
        """Run a program in a transaction, and stay in it: nobody else can write."""
        self._ask("begin", number, program)

    def commit(self) -> tuple[bytes, Run]:
        """Commit the transaction that was begun; return as `run` does."""
        stamp, run = self._ask("commit")
        return stamp, run

    def contents(self) -> dict[bytes, bytes]:
        """Return what is in the store."""
        found: dict[bytes, bytes] = self._ask("contents")
        return found

    def _ask(self, *request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


def _run(
    store: ThreadlessStore, number: int, program: list[Operation], hold: tuple[BinaryIO, BinaryIO] | None = None
) -> tuple[bytes | None, Run]:
    runs: list[Run] = []

    async def function(tr: Transaction) -> None:
        run = Run(number, program)
        await run.to_its_end(tr)
        if hold is not None:
            source, target = hold
            _answer(target, "holding")
            assert pickle.load(source) == ("commit",)
        runs.append(run)

    return store.commit(function), runs[-1]


def _answer(target: BinaryIO, answer: object) -> None:
    pickle.dump(answer, target)
    target.flush()


def main() -> None:
    """Obey until the input ends."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the answers are not for a print to disturb
    store: ThreadlessStore | None = None
    while True:
        try:
            request = pickle.load(source)
        except EOFError:
            return
        match request, store:
            case ("open", path), None:
                store = ThreadlessStore(path)
                _answer(target, "open")
            case ("run", number, program), ThreadlessStore():
                _answer(target, _run(store, number, program))
            case ("begin", number, program), ThreadlessStore():
                _answer(target, _run(store, number, program, (source, target)))
            case ("contents",), ThreadlessStore():
                _answer(target, store.contents())
            case ("close",), ThreadlessStore():
                store.end()
                store = None
                _answer(target, "closed")
            case _:
                raise ValueError(request)


if __name__ == "__main__":
    main()
