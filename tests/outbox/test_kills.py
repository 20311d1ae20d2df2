"""Relays and workers that are killed, and a server that crashes: each row is one job, and each effect happens once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from jobs_service import JobsService, outbox
from tests.outbox.server import Server
from tests.outbox.support import Place

ROWS: Final = int(os.environ.get("OUTBOX_ROWS", "1500"))
"""Rows that are moved; `scripts/test --long outbox` asks for 100,000."""
JOBS, DEADLY = (30, 0.1) if ROWS < 10_000 else (10_000, 0.02)
"""Jobs whose effects are counted, and how many of their runs end their process."""
KEYS: Final = 4
ROLLED_BACK: Final = 0.1
CRASHES: Final = 2 if ROWS < 10_000 else 10
"""Of the server."""
LONGEST_LIFE: Final = 2.0
"""Seconds after which a relay is killed at the latest, once it has begun to work."""
PATIENCE: Final = 240.0 + ROWS / 20

pytestmark = [pytest.mark.unmeasured, pytest.mark.timeout(PATIENCE + 60)]

WORKER = """
import os, random, signal
from contextlib import closing
from jobs_service import JobsService, outbox

URL = os.environ["URL"]
jobs = JobsService("lmdb:store")


def connect():
    if URL.startswith("sqlite:"):
        import sqlite3
        return sqlite3.connect(URL.removeprefix("sqlite:"), timeout=60)
    import psycopg
    return psycopg.connect(URL)


@jobs.handler("receipt", slots=4, keep=0, max_attempts=None)
def receipt(job, order: int):
    with closing(connect()) as db:
        with db:
            if outbox.once(db, job):
                db.execute(f"insert into receipts (number) values ({order})")
        if random.random() < float(os.environ["DEADLY"]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@asynccontextmanager
async def daemon(directory: Path, place: Place, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a daemon that relays the outbox; kill it in the end."""
    command = ["-m", "jobs_service", "serve", *words, "--outbox", place.url, "--log-level", "info"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=directory,
        env={**os.environ, "URL": place.url, "DEADLY": str(DEADLY), "JOBS_SERVICE_STORE": "lmdb:store"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def says(process: asyncio.subprocess.Process, word: bytes) -> bool:
    """Return whether the process has logged a word before its end."""
    assert process.stderr is not None
    async for line in process.stderr:
        if word in line:
            return True
    return False


def write_orders(place: Place, key: int, seed: int) -> None:
    """Write orders with their jobs, each in a transaction; some are rolled back, and the server may crash meanwhile."""
    draw, number = random.Random(seed), 0
    while number < ROWS // KEYS:
        with suppress(psycopg.OperationalError), closing(place.connect()) as connection:
            # The commit before a crash may have happened.
            [[number]] = connection.execute(f"select count(*) from orders where owner = {key}").fetchall()
            while number < ROWS // KEYS:
                connection.execute("begin")
                connection.execute(f"insert into orders (owner, number) values ({key}, {number})")
                outbox.enqueue(connection, "receipt", [key, number])
                is_kept = draw.random() >= ROLLED_BACK
                connection.execute("commit" if is_kept else "rollback")
                number += is_kept
        time.sleep(0.05)  # the server may be away


async def test_each_row_is_one_job_in_order_though_relays_are_killed_and_the_server_crashes(
    place: Place, server: Server, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    place.run("create table orders (owner integer, number integer)")
    place.run("create table receipts (number integer)")
    async with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        await jobs.set_type_timeout("receipt", 60)
    writers = [asyncio.create_task(asyncio.to_thread(write_orders, place, key, seed + key)) for key in range(KEYS)]
    crashes = 0 if place.is_sqlite else CRASHES
    lives = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while lives < 3 or crashes or not all(each.done() for each in writers) or place.rows():
                lives += 1
                async with daemon(tmp_path, place) as relay:
                    if not await says(relay, b"outbox_relayed"):
                        continue
                    if crashes and lives % 2 == 0:
                        crashes -= 1
                        await asyncio.sleep(draw.uniform(0, LONGEST_LIFE))
                        await asyncio.to_thread(crash, server)
                        assert await says(relay, b"outbox_relayed"), "the relay comes back by itself"
                    await asyncio.sleep(draw.uniform(0, LONGEST_LIFE))
    finally:
        await asyncio.gather(*writers)
    found = defaultdict(list)
    async with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        while some := await jobs.accept_many("receipt", 500, timeout=0):
            for job in some:
                found[job.data[0]].append(job.data[1])
    print(f"{lives} relays")
    assert dict(found) == {key: [*range(ROWS // KEYS)] for key in range(KEYS)}


def crash(server: Server) -> None:
    """End the server as in a crash, and start it."""
    server.stop(signal.SIGQUIT)
    time.sleep(0.1)  # others notice that it is away
    server.start()


async def test_each_effect_happens_once_though_workers_die_right_after_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(WORKER)
    place.run("create table receipts (number integer)")
    if place.is_sqlite:
        place.run("pragma journal_mode = wal")
    place.enqueue_many(range(JOBS))
    deaths = 0

    async def until_done() -> None:
        count = "select count(*) from jobs_service_outbox"
        async with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
            with closing(place.connect()) as connection:
                while connection.execute(count).fetchone() != (0,) or [job async for job in jobs.list("receipt")]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async with asyncio.timeout(PATIENCE):
        done = asyncio.create_task(until_done())
        try:
            while not done.done():
                async with daemon(tmp_path, place, "app:jobs") as worker:
                    ended = asyncio.create_task(worker.wait())
                    reading = asyncio.create_task(says(worker, b"no such word"))
                    await asyncio.wait([ended, done], return_when=asyncio.FIRST_COMPLETED)
                    deaths += ended.done()
                    for task in (reading, ended):
                        task.cancel()
                    await asyncio.wait([reading, ended])
        finally:
            done.cancel()
        await done
    print(f"{deaths} deaths")
    receipts: list[Any] = place.run("select number from receipts order by number")
    assert receipts == [(number,) for number in range(JOBS)]
