"""Those who watch more keys than FoundationDB's client takes: their watches are polled, as its store does it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from jobs_service.store.base import Store, Transaction, Watch
from jobs_service.store.fdb.watches import FdbWatches
from tests.simulation.books import Book
from tests.simulation.client import Client
from tests.simulation.programs import LETTERS
from tests.simulation.workloads.base import Workload

_POLL: Final = 0.2
_LATE: Final = 4 * _POLL
"""Seconds within which a watch that is polled fires, where nothing takes time."""


class Pollers(Workload):
    """Watch keys that they and others change, by the part of FoundationDB's store that needs no client."""

    name = "pollers"
    weight: ClassVar[int] = 1

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._prefix = b"pollers/"

    async def step(self, client: Client) -> None:
        random, run, loop, store = self.random, self.run, self.run.world.loop, client.jobs.store
        book = Book(self._prefix + b"%d/" % random.getrandbits(60), loop.time, run.complain)
        book.is_strict = False  # What is committed may be seen before who has changed it is answered.
        watches: Any = FdbWatches(
            None,  # type: ignore[arg-type]
            _Loop(loop),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            limit=0,
            poll=_POLL,
            values_of=lambda keys: _values(store, keys),
            lost=lambda failure: None,
        )
        try:
            for _ in range(random.randint(1, 4)):
                await self._watch(client, book, watches)
                for _ in range(random.randint(0, 2)):
                    await self._change(store, book)
                began = loop.time()
                await asyncio.sleep(random.choice([0.0, 0.1, _LATE, 2 * _LATE]))
                self._look(client, book, loop.time() - began)
        finally:
            if run.world.loop.is_running():
                await watches.close("the store was closed")
        for complaint in book.left_by(client.process):
            run.complain(f"{complaint} (polled)")

    async def _watch(self, client: Client, book: Book, watches: FdbWatches) -> None:
        keys = self.random.sample([*book.values], self.random.randint(1, 3))
        for key, value in zip(keys, await _values(client.jobs.store, keys), strict=True):
            book.changed(key, value)
            watch = Watch(key)
            watch.baseline = value
            watches.add_polled(watch)
            book.keep(watch, client.process)

    async def _change(self, store: Store, book: Book) -> None:
        key = book.keys + bytes([self.random.choice(LETTERS)])
        value = self.random.choice([None, b"", b"1", b"2"])

        async def change(tx: Transaction) -> None:
            if value is None:
                del tx[key]
            else:
                tx[key] = value

        await store.transact(change)
        book.changed(key, value)

    def _look(self, client: Client, book: Book, rested: float) -> None:
        """Nobody else writes these keys: what has changed before the rest has fired in it."""
        now = self.run.world.loop.time()
        if rested < _LATE or self.run.quiet.quick_since() > now - rested or not client.process.running:
            return
        for each in [*book.watchings]:
            if book.missed(each, now - rested):
                self.run.complain(f"watch: the one on {each.key!r} of {client.process} has not fired; it is polled")


class _Loop:
    """The simulated loop without threads: what carries the client's watches has nothing to do here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run_in_executor(self, *arguments: Any) -> asyncio.Future[None]:
        """Return the future of what has ended."""
        ended = self._loop.create_future()
        ended.set_result(None)
        return ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def _values(store: Store, keys: list[bytes]) -> list[bytes | None]:
    async def look(tx: Transaction) -> list[bytes | None]:
        return await tx.get_many(keys)

    return await store.read(look)
