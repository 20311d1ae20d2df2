"""The outbox: what a row costs the application's transaction, and how fast a relay moves rows into the store."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing

from benchmarks.base import TIMEOUT, TYPE, Figure, Measurements, timed


class OutboxMeasurements(Measurements):
    """Rows in a SQLite file, which is not that of the store."""

    async def outbox(self) -> list[Figure]:
        """Rows that are enqueued in transactions of a thousand, and then moved."""
        from jobs_service import outbox  # a checkout (`--against`) may have none

        total = self.count(50_000)
        with tempfile.TemporaryDirectory(prefix="jobs-bench-") as directory, self.service() as service:
            url = f"sqlite:{directory}/app.db"
            with closing(sqlite3.connect(f"{directory}/app.db", isolation_level=None)) as db:
                db.executescript(outbox.schema("sqlite"))
                began = time.process_time()
                for number in range(total):
                    if number % 1000 == 0:
                        db.execute("begin")
                    outbox.enqueue(db, TYPE, {"n": number})
                    if number % 1000 == 999 or number == total - 1:
                        db.execute("commit")
                enqueueing = time.process_time() - began
                async with service as jobs:
                    await jobs.set_type_timeout(TYPE, TIMEOUT)

                    async def move() -> None:
                        relay = asyncio.create_task(outbox.relay(jobs, url))
                        while db.execute("select 1 from jobs_service_outbox limit 1").fetchone():  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                        relay.cancel()
                        await asyncio.wait([relay])

                    began = time.process_time()
                    seconds = await timed(move)
                    moving = time.process_time() - began
        each = enqueueing / total * 1e6
        return [
            Figure("outbox_enqueue_us", each, "us", 60, False, "processor time of `outbox.enqueue` in a SQLite file"),
            Figure("outbox_relay", total / seconds, "/s", 10_000, True, "rows that a relay moves into the store"),
            Figure("outbox_relay_us", moving / total * 1e6, "us", 100, False, "processor time of that per row"),
        ]
