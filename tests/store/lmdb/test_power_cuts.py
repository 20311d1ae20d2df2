"""A power cut at any moment of a real workload of the embedded store: what was answered is there, nothing half there.

Not tested: drives that lie about flushes, and sectors that are not written as a whole.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

import fdb.tuple
import pytest

from jobs_service.store import Transaction
from tests.checker import complaints_about
from tests.store.lmdb.interleaving import quick_directory
from tests.store.lmdb.lmdb_process import ROOT
from tests.store.lmdb.power_cuts import Cut, Event, can_trace, trace
from tests.store.lmdb.threadless import ThreadlessStore
from tests.store.lmdb.traced_process import mark

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is missing, or may not trace")

IMAGES_OF_A_CUT = 3
META_PAGES = 8192
PREFIX = fdb.tuple.pack(("jobs_service",))
State = dict[bytes, bytes]


@contextmanager
def stored(image: bytes) -> Iterator[ThreadlessStore]:
    """Open a store whose data file is this."""
    with quick_directory() as directory:
        (directory / "data.mdb").write_bytes(image)
        store = ThreadlessStore(directory)
        try:
            yield store
        finally:
            store.end()


@dataclass
class Recording:
    """All that a process did to its store, in order."""

    events: list[Event]
    directory: Path

    @cached_property
    def commits(self) -> list[int]:
        """The writes of meta pages, once there is a file: each ends a commit."""
        writes = [event for event in self.events[self.made :] if event.name == "write begins"]
        return [write.number for write in writes if write.offset < META_PAGES]

    @cached_property
    def made(self) -> int:
        """How many events it took until the data file got its name."""
        [place] = [place for place, event in enumerate(self.events) if event.name == "link begins"]
        return place

    @cached_property
    def states(self) -> list[State]:
        """What the store held at first, and after each commit."""
        states: list[State] = [{}]
        for place, event in enumerate(self.events):
            if event.name == "write ends" and event.number in self.commits:
                with stored(Cut.after(self.events[: place + 1]).whole()) as store:
                    states.append(store.contents())
        return states


@pytest.fixture(scope="module", params=["durable", "relaxed"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A recorded workload."""
    directory = tmp_path_factory.mktemp("traced")
    store, journal = directory / "store", directory / "journal"
    command = [sys.executable, "-m", "tests.store.lmdb.traced_process", str(store), str(journal)]
    durable = request.param == "durable"
    return Recording(trace([*command, f"durable={durable}"], store, journal, cwd=ROOT), directory)


@pytest.fixture
def is_durable(request: pytest.FixtureRequest) -> bool:
    """Whether the recorded store was opened with full durability."""
    return bool(request.node.callspec.params["recording"] == "durable")


def test_the_store_was_sound_after_each_commit(recording: Recording) -> None:
    assert len(recording.states) > 10
    for state in recording.states:
        pairs = sorted((key, value) for key, value in state.items() if key.startswith(PREFIX))
        assert complaints_about(PREFIX, b"\xff" * 10, time.time(), pairs) == []


def test_whatever_a_power_cut_leaves_is_what_some_commit_left(recording: Recording, is_durable: bool) -> None:
    assert not Cut.after(recording.events[: recording.made]).loose, "the file has its name before it is complete"
    assert cut_everywhere(recording, recording.events, answers_last=is_durable) > 150


def test_meta_pages_that_are_not_flushed_are_noticed(recording: Recording) -> None:
    """The checks would see a store that answers before its commit is on disk."""
    unflushed = [replace(event, is_flushed=False) for event in recording.events]
    with pytest.raises(AssertionError, match="is lost"):
        cut_everywhere(recording, unflushed, answers_last=True)


def cut_everywhere(recording: Recording, events: list[Event], *, answers_last: bool) -> int:
    """Check what power cuts after each event leave; return how many different files that were."""
    choose = Random(13)
    images: set[tuple[bytes, int]] = set()
    acknowledged: set[bytes] = set()
    for place in range(recording.made + 1, len(events) + 1):
        event = events[place - 1]
        if event.name == "line begins" and event.content.startswith(b"done "):
            acknowledged.add(mark(int(event.content.split()[1])))
        cut = Cut.after(events[:place])
        flushed = {write.number for write in cut.flushed}
        sure = sum(number in flushed for number in recording.commits)
        begun = sure + sum(write.number in recording.commits for write in cut.loose)
        for _ in range(IMAGES_OF_A_CUT):
            image = cut.image(choose)
            if (image, len(acknowledged)) in images:
                continue
            images.add((image, len(acknowledged)))
            state = check(image, recording.states[sure : begun + 1])
            assert not answers_last or acknowledged <= state.keys(), "what was answered is lost"
    return len(images)


def check(image: bytes, possible: list[State]) -> State:
    """Check that a file is the store in one of these states, and can be written; return the state."""

    async def write(tr: Transaction) -> None:
        for place in range(20):
            tr.set(b"after/%d" % place, b"x" * 2000)

    with stored(image) as store:
        state = store.contents()
        assert state in possible
        store.commit(write)
        after = store.contents()
        assert {key: value for key, value in after.items() if not key.startswith(b"after/")} == state
        assert len(after) == len(state) + 20
    return state


def test_a_new_stores_directories_are_flushed_before_it_is_open(recording: Recording) -> None:
    """Otherwise a power cut may leave the data without a name."""
    [opened] = [place for place, event in enumerate(recording.events) if event.content == b"open\n"][:1]
    flushed = {event.content.decode() for event in recording.events[:opened] if event.name == "directory ends"}
    assert {str(recording.directory / "store"), str(recording.directory)} <= flushed
