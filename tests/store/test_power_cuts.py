"""A power cut at any moment of a real workload of an embedded store: what was answered is there, nothing half there.

Not tested: drives that lie about flushes, and sectors that are not written as a whole.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random

import fdb.tuple
import pytest

from jobs_service.store import Transaction
from tests.checker import complaints_about
from tests.store.lmdb.interleaving import quick_directory
from tests.store.lmdb.lmdb_process import ROOT
from tests.store.lmdb.threadless import ThreadlessSqliteStore, ThreadlessStore
from tests.store.lmdb.traced_process import OPERATIONS, mark
from tests.store.power_cuts import Cut, Event, can_trace, trace

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is missing, or may not trace")

IMAGES_OF_A_CUT = 3
MOST_CUTS, ANSWERS = 40, 0.3
"""Of very many: places, and the share of those right behind an answer."""
META_PAGES = 8192
WAL, FRAME_HEADER, PAGE = "app.db-wal", 24, 512
PREFIX = fdb.tuple.pack(("jobs_service",))
State = dict[bytes, bytes]
Image = Mapping[str, bytes]
Stored = ThreadlessStore | ThreadlessSqliteStore


@dataclass(frozen=True)
class Kind:
    """A kind of embedded store.

    Attributes:
        scheme: of its address.
        files: names of its files, in the directory of the store or, of a SQLite file, in that of the test.
        operations: of each task of the workload.
        commits: returns the writes that end a commit, by the writes in their order.
    """

    scheme: str
    files: tuple[str, ...]
    operations: int
    commits: Callable[[Sequence[Event]], list[int]]

    def open(self, directory: Path) -> Stored:
        """Open the files in a directory as a store."""
        return ThreadlessStore(directory) if self.scheme == "lmdb" else ThreadlessSqliteStore(directory / "app.db")


def ends_of_lmdb(writes: Sequence[Event]) -> list[int]:
    """Meta pages."""
    return [write.number for write in writes if write.offset < META_PAGES]


def ends_of_sqlite(writes: Sequence[Event]) -> list[int]:
    """Pages in the log behind a frame's header that has the size of the database."""
    log = [write for write in writes if write.file == WAL]
    return [
        page.number
        for header, page in pairwise(log)
        if len(header.content) == FRAME_HEADER and any(header.content[4:8])
    ]


LMDB = Kind("lmdb", ("data.mdb",), OPERATIONS, ends_of_lmdb)
SQLITE = Kind("sqlite", ("app.db", WAL), 30, ends_of_sqlite)
"""It does more: its log has begun anew when it has 1,000 pages, which are small."""


@dataclass
class Recording:
    """All that a process did to its store, in order."""

    kind: Kind
    events: list[Event]
    directories: set[str]
    before: Image = field(default_factory=dict)

    @cached_property
    def commits(self) -> list[int]:
        """The writes that end a commit, once there is a file."""
        return self.kind.commits([event for event in self.events[self.made :] if event.name == "write begins"])

    @cached_property
    def made(self) -> int:
        """How many events it took until the data file got its name."""
        return next((place for place, event in enumerate(self.events) if event.name == "link begins"), 0)

    @cached_property
    def states(self) -> list[State]:
        """What the store held at first, and after each commit."""
        states: list[State] = [{}]
        for place, event in enumerate(self.events):
            if event.name == "write ends" and event.number in self.commits:
                with self.stored(Cut.after(self.events[: place + 1], self.before).whole()) as store:
                    states.append(store.contents())
        return states

    @contextmanager
    def stored(self, image: Image) -> Iterator[Stored]:
        """Open a store whose files are these."""
        with quick_directory() as directory:
            for name, content in image.items():
                (directory / name).write_bytes(content)
            store = self.kind.open(directory)
            try:
                yield store
            finally:
                store.end()


@pytest.fixture(scope="module", params=["lmdb-durable", "lmdb-relaxed", "sqlite-durable", "sqlite-relaxed"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recorded workload."""
    directory = tmp_path_factory.mktemp("traced")
    journal, store = directory / "journal", directory / "store"
    kind = LMDB if request.param.startswith("lmdb") else SQLITE
    path, files, before = store, [store / name for name in kind.files], {}
    if kind is SQLITE:
        path, files = directory / "app.db", [directory / name for name in kind.files]
        with closing(sqlite3.connect(path)) as application:
            application.executescript(f"pragma page_size = {PAGE}; pragma journal_mode = wal; create table mine (x)")
        before = {path.name: path.read_bytes()}
    command = [sys.executable, "-m", "tests.store.lmdb.traced_process", f"{kind.scheme}:{path}", str(journal)]
    durable = f"durable={request.param.endswith('durable')}"
    events = trace([*command, str(kind.operations), durable], files, journal, cwd=ROOT)
    return Recording(kind, events, {str(directory), str(files[0].parent)}, before)


@pytest.fixture
def is_durable(request: pytest.FixtureRequest) -> bool:
    """Whether the recorded store was opened with full durability."""
    return str(request.node.callspec.params["recording"]).endswith("durable")


def test_the_store_was_sound_after_each_commit(recording: Recording) -> None:
    assert len(recording.states) > 10
    for state in recording.states:
        pairs = sorted((key, value) for key, value in state.items() if key.startswith(PREFIX))
        assert complaints_about(PREFIX, b"\xff" * 10, time.time(), pairs) == []


def test_whatever_a_power_cut_leaves_is_what_some_commit_left(recording: Recording, is_durable: bool) -> None:
    assert not Cut.after(recording.events[: recording.made]).loose, "the file has its name before it is complete"
    assert cut_everywhere(recording, recording.events, answers_last=is_durable) > 80


def test_a_log_that_begins_anew_is_among_what_is_cut(recording: Recording) -> None:
    if recording.kind is SQLITE:
        heads = [
            event for event in recording.events if (event.name, event.file, event.offset) == ("write begins", WAL, 0)
        ]
        assert len(heads) > 1
        assert [event for event in recording.events if event.name == "removal ends"]


def test_commits_that_are_not_flushed_are_noticed(recording: Recording) -> None:
    """The checks would see a store that answers before its commit is on disk."""
    unflushed = [
        replace(event, is_flushed=False)
        for event in recording.events
        if recording.kind is LMDB or not event.name.startswith("flush")
    ]
    with pytest.raises(AssertionError, match="is lost"):
        cut_everywhere(recording, unflushed, answers_last=True)


def cut_everywhere(recording: Recording, events: list[Event], *, answers_last: bool) -> int:
    """Check what power cuts after each event leave, or after some of very many; return how many images that were."""
    choose = Random(13)
    images: set[tuple[object, int]] = set()
    acknowledged: set[bytes] = set()
    places = range(recording.made + 1, len(events) + 1)
    chosen = {*(places if recording.kind is LMDB else choose.sample(places, MOST_CUTS))}
    for place in places:
        event = events[place - 1]
        if event.name == "line begins" and event.content.startswith(b"done "):
            acknowledged.add(mark(int(event.content.split()[1])))
            if choose.random() < ANSWERS:
                chosen.add(place)
        if place not in chosen:
            continue
        cut = Cut.after(events[:place], recording.before)
        flushed = {write.number for write in cut.flushed}
        sure = sum(number in flushed for number in recording.commits)
        begun = sure + sum(write.number in recording.commits for write in cut.loose)
        for _ in range(IMAGES_OF_A_CUT):
            image = cut.image(choose)
            name = (tuple(map(hash, image.items())), len(acknowledged))
            if name in images:
                continue
            images.add(name)
            state = check(recording, image, recording.states[sure : begun + 1])
            assert not answers_last or acknowledged <= state.keys(), "what was answered is lost"
    return len(images)


def check(recording: Recording, image: Image, possible: list[State]) -> State:
    """Check that files are the store in one of these states, and can be written; return the state."""

    async def write(tr: Transaction) -> None:
        for place in range(20):
            tr.set(b"after/%d" % place, b"x" * 2000)

    with recording.stored(image) as store:
        state = store.contents()
        assert state in possible
        store.commit(write)
        after = store.contents()
        assert {key: value for key, value in after.items() if not key.startswith(b"after/")} == state
        assert len(after) == len(state) + 20
    return state


def test_a_new_stores_directories_are_flushed_before_it_is_open(recording: Recording) -> None:
    """Otherwise a power cut may leave the data without a name; of a SQLite file, the log."""
    [opened] = [place for place, event in enumerate(recording.events) if event.content == b"open\n"][:1]
    flushed = {event.content.decode() for event in recording.events[:opened] if event.name == "directory ends"}
    assert recording.directories <= flushed
