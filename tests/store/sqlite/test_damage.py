"""Damaged files of a SQLite store: one clear line, or what was there before; never anything else.

SQLite keeps checksums of what is in the log, and none of the pages of the file.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs_service.errors import StoreDamaged, StoreError
from jobs_service.store import Transaction
from tests.contract.support import contents, write
from tests.store.lmdb.threadless import ThreadlessSqliteStore
from tests.store.sqlite.conftest import opened

PAGE = 512
FLIPS = 60
HEADER, FRAME = 32, 24 + PAGE
"""Bytes of the log before its frames, and of a frame."""
State = dict[bytes, bytes]


def outcome(path: Path) -> State | str:
    """Open, read all and write; return what was there, or the line that tells why not."""

    async def write(tr: Transaction) -> None:
        tr.set(b"after", b"1")

    store, line = None, ""
    try:
        store = ThreadlessSqliteStore(path)
        found = store.contents()
        store.commit(write)
    except StoreError as error:
        line = str(error)
    finally:
        if store is not None:
            store.end()
    assert "\n" not in line
    assert not line or str(path) in line
    return line or found


@pytest.fixture
def states(path: Path) -> list[State]:
    """A store whose log has several commits, as a killed process leaves it; what it held after each of them."""
    made = path.with_name("made.db")
    with closing(sqlite3.connect(made)) as application:
        application.executescript(f"pragma page_size = {PAGE}; pragma journal_mode = wal; create table mine (x)")
    store = ThreadlessSqliteStore(made)
    choose = random.Random(3)
    states: list[State] = [{}]
    for number in range(12):

        async def work(tr: Transaction, number: int = number) -> None:
            for place in range(5):
                tr.set(b"%d" % (5 * number + place), choose.randbytes(choose.choice([10, 200, 1500])))

        store.commit(work)
        states.append(store.contents())
    for name in ("", "-wal"):
        shutil.copy(f"{made}{name}", f"{path}{name}")
    store.end()
    return states


@pytest.fixture
def log(path: Path, states: list[State]) -> bytes:
    """What is in the log."""
    return Path(f"{path}-wal").read_bytes()


def images(good: bytes) -> Iterator[bytes]:
    """Yield a file with one byte changed, in many places."""
    choose = random.Random(5)
    heads = [page + choose.randrange(12) for page in range(0, len(good), 2 * PAGE)]
    for place in (*range(0, 100, 7), *heads, *(choose.randrange(len(good)) for _ in range(FLIPS))):
        changed = bytearray(good)
        changed[place] ^= 1 << choose.randrange(8)
        yield bytes(changed)


def test_a_log_with_a_changed_byte_or_cut_off_leaves_what_an_earlier_commit_left(
    path: Path, states: list[State], log: bytes
) -> None:
    data, lengths = path.read_bytes(), random.Random(7).sample(range(len(log)), 30)
    lengths += [HEADER + frames * FRAME for frames in range(9)]
    for changed in (*images(log), *(log[:length] for length in lengths)):
        path.write_bytes(data)
        Path(f"{path}-wal").write_bytes(changed)
        found = outcome(path)
        assert found in states or (isinstance(found, str) and "is damaged" in found)


def test_a_file_with_a_changed_byte_is_read_or_refused_in_one_line(path: Path, states: list[State]) -> None:
    assert outcome(path) == states[-1]
    with closing(sqlite3.connect(path)) as application:
        application.execute("pragma wal_checkpoint(truncate)")
    good, refused = path.read_bytes(), 0
    for changed in images(good):
        path.write_bytes(changed)
        found = outcome(path)
        refused += isinstance(found, str)
    assert refused > 10


def test_a_file_cut_off_at_the_end_of_any_page_is_refused(path: Path, states: list[State]) -> None:
    assert outcome(path) == states[-1]
    good = path.read_bytes()
    for size in range(PAGE, len(good), 7 * PAGE):
        path.write_bytes(good[:size])
        found = outcome(path)
        assert isinstance(found, str), size
        assert "is damaged" in found


async def test_a_log_that_is_cut_off_while_it_is_in_use_is_damage(path: Path) -> None:
    async with opened(path) as store:
        for number in range(20):
            await write(store, {b"%d" % number: os.urandom(50_000)})
        os.truncate(f"{path}-wal", 5_000)
        with pytest.raises(StoreDamaged, match=r"is damaged .*restore a backup"):
            await contents(store)
