"""Another process on an embedded store: obeys one-line commands on its standard input, answers with one line each.

`python -m tests.store.lmdb.lmdb_process PATH [SETTING=VALUE ...]`; the tests' side of it is `Process`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.store import Transaction
from jobs_service.store.lmdb import LmdbStore
from tests.contract.support import number, patience, placeholder, value_of, write

ROOT = Path(__file__).parents[3]


async def obey(store: LmdbStore, command: str, arguments: list[str]) -> str:
    """Obey one command and return the answer."""
    match command, arguments:
        case "set", [key, value]:
            await write(store, {key.encode(): value.encode()})
            return "done"
        case "get", [key]:
            value_found = await value_of(store, key.encode())
            return "none" if value_found is None else value_found.decode()
        case "log", [count]:
            for place in range(int(count)):
                await log(store, b"%d/%d" % (os.getpid(), place))
            return "done"
        case "append", []:
            place = 0
            while True:
                await log(store, b"%d/%d" % (os.getpid(), place))
                print(place, flush=True)
                place += 1
        case "hold", [key]:
            await hold(store, key.encode())
            return "done"
        case "hold_read", [key]:
            await hold(store, key.encode(), read_only=True)
            return "done"
        case "fill", [size]:
            return await fill(store, int(size))
    raise ValueError(command)


async def log(store: LmdbStore, entry: bytes) -> None:
    """Append to the log, and count what is in it."""

    async def function(tr: Transaction) -> None:
        tr.set_versionstamped_key(placeholder(b"log/"), entry)
        tr.set(b"count", b"%d" % (int(await tr.get(b"count") or 0) + 1))
        tr.add(b"sum", number(1))

    await store.transact(function)


async def hold(store: LmdbStore, key: bytes, *, read_only: bool = False) -> None:
    """Set a key, or read it, and stay in the transaction until the next line comes."""
    loop = asyncio.get_running_loop()
    holding = asyncio.Event()
    let_go = threading.Event()

    async def function(tr: Transaction) -> None:
        if read_only:
            await tr.get(key)
        else:
            tr.set(key, b"1")
        loop.call_soon_threadsafe(holding.set)
        let_go.wait()

    call = asyncio.create_task(store.read(function) if read_only else store.transact(function))
    await holding.wait()
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    let_go.set()
    await call


async def fill(store: LmdbStore, size: int) -> str:
    """Write values until that fails, and return how many were written and the error."""
    place = 0
    while True:
        try:
            await write(store, {b"fill/%06d" % place: b"x" * size})
        except StoreError as error:
            return f"{place} {type(error).__name__}"
        place += 1


async def main(path: str, options: list[str]) -> None:
    """Open the store and obey until the input ends."""
    store = LmdbStore(path, settings=Settings(**dict(option.split("=", 1) for option in options)))
    await store.open()
    print("open", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, *arguments = line.split()
        print(await obey(store, command, arguments), flush=True)
    await store.close()


class Process:
    """A running process, seen from the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, *command: object) -> None:
        """Give a command without waiting for its answer."""
        self._input.write((" ".join(map(str, command)) + "\n").encode())

    async def hear(self) -> str:
        """Return the next line that it says; an empty string when it has ended."""
        async with patience():
            return (await self._output.readline()).decode().rstrip("\n")

    async def ask(self, *command: object) -> str:
        """Give a command and return its answer."""
        self.tell(*command)
        return await self.hear()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def end(self) -> int:
        """Close its input, and return its exit status."""
        self._input.close()
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill it at once, whatever it does."""
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
        await self._process.wait()
        self._input.close()


@asynccontextmanager
async def process(path: Path, **options: object) -> AsyncIterator[Process]:
    """Run a process that has the store open, and kill it at the end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.store.lmdb.lmdb_process",
        str(path),
        *[f"{name}={value}" for name, value in options.items()],
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Process(child)
    try:
        assert await running.hear() == "open"
        yield running
    finally:
        await running.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
