"""Files that are not whole, not the store's, or not sound: refused at opening, never by the death of the process.

Everything is opened in a process of its own, because LMDB's way of refusing may be a signal.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.system.forking import ForkServer

PAGE = 4096


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer() as server:
        yield server


class Opener:
    """Opens files as stores, each in a process of its own.

    Args:
        forks: starts them.
        directory: for what is opened.
    """

    def __init__(self, forks: ForkServer, directory: Path) -> None:
        self.forks = forks
        self.path = directory / "opened"
        self.data = self.path / "data.mdb"
        self._journal = directory / "journal"
        self.path.mkdir()

    def open(self) -> list[Any]:
        """Open what is there, read all of it and write; return what became of that."""
        self._journal.unlink(missing_ok=True)
        pid = self.forks.start("read_all_and_write", path=str(self.path), journal=str(self._journal))
        assert self.forks.wait(pid) == 0
        return list(json.loads(self._journal.read_text()))

    def open_file(self, content: bytes) -> list[Any]:
        """Open a file with this content."""
        self.data.write_bytes(content)
        return self.open()

    def refusal(self, content: bytes) -> str:
        """Return why a file is refused, which it has to be, in one line, and left as it is."""
        what, kind, message = self.open_file(content)
        assert (what, kind) == ("refused", "StoreError")
        assert str(self.path) in message
        assert "\n" not in message
        assert self.data.read_bytes() == content
        return str(message)


@pytest.fixture
def opener(forks: ForkServer, tmp_path: Path) -> Opener:
    """Opens files in processes of their own."""
    return Opener(forks, tmp_path)


@pytest.fixture
def good(opener: Opener) -> bytes:
    """A store's file with small, large and very large values, and some free pages."""
    assert opener.open()[0] == "read"
    choose = random.Random(1)
    with lmdb.open(str(opener.path), map_size=1 << 30) as environment:
        for _ in range(8):
            with environment.begin(write=True) as transaction:
                for _ in range(10):
                    size = choose.choice([10, 200, 3000, 9000])
                    transaction.put(b"%d" % choose.randrange(100), choose.randbytes(size))
                    transaction.delete(b"%d" % choose.randrange(100))
    content = opener.data.read_bytes()
    assert len(content) % PAGE == 0
    assert opener.open_file(content)[0] == "read"
    return content


# Cut off


def test_a_file_cut_off_at_the_end_of_any_page_is_refused(opener: Opener, good: bytes) -> None:
    for size in range(PAGE, len(good), PAGE):
        message = opener.refusal(good[:size])
        needed = 2 * PAGE if size < 2 * PAGE else len(good)
        assert f"data.mdb has {size} bytes and needs " in message
        assert f"{needed}: it was cut off" in message
        assert "restore a backup" in message


def test_a_file_cut_off_within_a_page_is_refused(opener: Opener, good: bytes) -> None:
    sizes = [1, 15, 16, 151, 152, 153, PAGE - 1, PAGE + 1, PAGE + 151, PAGE + 152, PAGE + 153, len(good) - 1]
    sizes += random.sample(range(2 * PAGE, len(good)), 20)
    for size in sizes:
        message = opener.refusal(good[:size])
        assert "no embedded store" in message or f"data.mdb has {size} bytes and needs " in message


@pytest.mark.parametrize("size", [1024, PAGE, PAGE + 1024, 2 * PAGE - 1])
def test_a_store_whose_making_was_cut_short_is_completed(opener: Opener, size: int) -> None:
    """Of its first write, two pages, only a part was done when the disk was full or the process was killed."""
    with lmdb.open(str(opener.path)):
        pass
    new = opener.data.read_bytes()
    assert len(new) == 2 * PAGE
    assert opener.open_file(new[:size])[:2] == ["read", 0]
    assert opener.open()[:2] == ["read", 1]


def short(path: Path, *, keep: bool) -> int:
    """Have LMDB leave its file shorter than its pages reach, and return by how many pages.

    Args:
        path: the environment.
        keep: whether something is written behind what is free.
    """
    with lmdb.open(str(path), map_size=1 << 30) as environment:
        for _ in range(4):  # it knows of free pages only after some transactions
            with environment.begin(write=True) as transaction:
                transaction.put(b"a", bytes(5000))
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", bytes(5001))
            transaction.put(b"large", bytes(60_000))
            transaction.delete(b"large")
        if keep:
            with environment.begin(write=True) as transaction:
                transaction.put(b"b", bytes(5000))
        last: int = environment.info()["last_pgno"]
    return last + 1 - (path / "data.mdb").stat().st_size // PAGE


def test_a_file_that_lacks_only_free_pages_is_sound(opener: Opener) -> None:
    opener.open()
    assert short(opener.path, keep=False) > 10
    assert opener.open()[:2] == ["read", 2]
    assert short(opener.path, keep=True) > 0
    assert opener.open()[:2] == ["read", 3]


def test_a_file_that_lacks_more_than_free_pages_is_refused(opener: Opener) -> None:
    opener.open()
    assert short(opener.path, keep=True) > 0
    content = opener.data.read_bytes()
    assert opener.open_file(content)[0] == "read"
    needed = len(content)
    while opener.open_file(content[: needed - PAGE])[0] == "read":  # a page that was written once may be free as well
        needed -= PAGE
    for size in range(needed - PAGE, 2 * PAGE, -PAGE):
        found = re.search(r"has (\d+) bytes and needs (\d+): it was cut off", opener.refusal(content[:size]))
        assert found is not None
        assert int(found[1]) == size
        # More when the list of free pages is cut off as well.
        assert int(found[2]) >= needed


def test_a_store_that_others_are_growing_opens_whenever_one_looks(opener: Opener, tmp_path: Path) -> None:
    """Also when one of them is killed in the middle of a write."""
    opener.open()
    writers: list[int] = []
    try:
        for number in range(24):
            if number % 4 == 0:
                if writers:
                    opener.forks.kill(writers.pop())
                writers.append(
                    opener.forks.start(
                        "write_until_killed", path=str(opener.path), journal=str(tmp_path / f"{number}"), seed=number
                    )
                )
            assert opener.open()[0] == "read"
    finally:
        for pid in writers:
            opener.forks.kill(pid)
    assert opener.open()[0] == "read"


# Not sound


@pytest.mark.parametrize("page_size", [0, 1, 255, 4095, 4097, 1 << 16, 1 << 31, 0xFFFFFFFF])
@pytest.mark.parametrize("place", [0, PAGE])
def test_a_file_with_an_impossible_page_size_is_refused(
    opener: Opener, good: bytes, page_size: int, place: int
) -> None:
    changed = bytearray(good)
    changed[place + 40 : place + 44] = page_size.to_bytes(4, sys.byteorder)
    opener.refusal(bytes(changed))


@pytest.mark.parametrize(
    "content",
    [b"no store\n" * 3000, b"no", bytes(5 * PAGE), b"\xff" * 5 * PAGE, random.Random(1).randbytes(5 * PAGE)],
    ids=["text", "short text", "zeros", "ones", "noise"],
)
def test_a_file_that_is_none_of_lmdbs_is_refused(opener: Opener, content: bytes) -> None:
    assert "no embedded store" in opener.refusal(content)


def test_another_programs_environment_is_refused_also_when_it_is_cut_off(opener: Opener) -> None:
    with lmdb.open(str(opener.path), map_size=1 << 30, max_dbs=2) as environment:
        own = environment.open_db(b"own", dupsort=True)
        with environment.begin(write=True, db=own) as transaction:
            for number in range(2000):
                transaction.put(b"%d" % (number % 7), b"%d" % number)
    content = opener.data.read_bytes()
    assert "no store of jobs_service" in opener.refusal(content)
    assert "it was cut off" in opener.refusal(content[: 3 * PAGE])


def make_directory(path: Path) -> None:
    path.mkdir()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_directory, make_fifo, make_loop])
@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_what_is_no_file_is_refused(opener: Opener, make: Callable[[Path], None], name: str) -> None:
    make(opener.path / name)
    what, kind, message = opener.open()
    assert (what, kind) == ("refused", "StoreError")
    assert f"{opener.path}" in message
    assert "\n" not in message


@pytest.mark.parametrize("content", [b"", b"x", bytes(PAGE), b"\xff" * (1 << 17)])
def test_a_lock_file_that_nobody_uses_may_hold_anything(opener: Opener, good: bytes, content: bytes) -> None:
    (opener.path / "lock.mdb").write_bytes(content)
    assert opener.open_file(good)[0] == "read"


def test_a_file_that_was_replaced_while_others_use_the_store_is_refused(
    opener: Opener, good: bytes, tmp_path: Path
) -> None:
    journal = tmp_path / "holder"
    opener.data.unlink()
    pid = opener.forks.start("write_until_killed", path=str(opener.path), journal=str(journal), seed=1, count=20)
    try:
        while not journal.exists() or b"open" not in journal.read_bytes():
            time.sleep(0.01)
        replacement = opener.path / "replacement"
        replacement.write_bytes(good)
        replacement.rename(opener.data)
        what, _, message = opener.open()
        assert what == "refused"
        assert "was replaced while other processes use the store" in message
    finally:
        opener.forks.kill(pid)
    assert opener.open()[0] == "read"


def test_lmdbs_own_verification_finds_a_damaged_page_that_opening_does_not(opener: Opener, good: bytes) -> None:
    """LMDB keeps no checksums: what is damaged in the middle is noticed when it is read, if at all."""
    changed = bytearray(good)
    with lmdb.open(str(opener.path), map_size=1 << 30, readonly=True) as environment, environment.begin() as view:
        key = next(key for key, value in view.cursor() if len(value) == 9000)
        value = bytes(view.get(key) or b"")
    place = good.index(value) - 16
    changed[place : place + PAGE] = random.Random(2).randbytes(PAGE)
    opener.data.write_bytes(bytes(changed))

    def verify() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lmdb", "verify", "-e", str(opener.path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    found = verify()
    assert found.returncode != 0
    assert f"page {place // PAGE}" in found.stdout + found.stderr
    opener.data.write_bytes(good)
    assert verify().returncode == 0
