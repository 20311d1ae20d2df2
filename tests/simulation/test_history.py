"""The history finds every kind of wrong that is put into a recorded run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import fdb.tuple
import pytest

from jobs_service.errors import JobExists
from jobs_service.layer.keyspace import pack_id
from jobs_service.model import UNSET
from tests.simulation.histories import Recorded, altered, lost, recorded, replayed, stored_in
from tests.simulation.model_job import Change

Wrong = Callable[[Recorded], object]
WRONGS: list[Any] = []


def complains(pattern: str) -> Callable[[Wrong], Wrong]:
    """Register what makes a recorded run wrong, and the complaint that it causes."""

    def register(wrong: Wrong) -> Wrong:
        WRONGS.append(pytest.param(wrong, pattern, id=wrong.__name__))
        return wrong

    return register


@complains("add.*of 't'/'a': expected ready data=1.*got JobExists")
def an_add_that_is_refused_without_a_reason(run: Recorded) -> None:
    run.first("add")[1].result = JobExists


@complains("stop.*ended a lock that was never given")
def a_lock_that_was_never_given(run: Recorded) -> None:
    _, entry = run.first("stop")
    entry.arguments = (b"never given.....", None, 20, "", False)


@complains(r"accept of 't' .*limit=1, spread=1.* took \['b'\], expected \['a'\]")
def an_accept_out_of_order(run: Recorded) -> None:
    _, entry = run.first("accept")
    entry.result = [("b", entry.result[0][1])]


@complains("accept took 't'/'early' before its time")
def an_accept_before_the_time(run: Recorded) -> None:
    _, entry = run.first("accept", lambda _, entry: len(entry.result) == 2)
    entry.now -= 10


@complains("accept gave 't'/'b' a lock that was given before")
def a_lock_that_is_given_twice(run: Recorded) -> None:
    _, given = run.first("accept")
    _, entry = run.first("accept", lambda _, entry: entry.result and entry.result[0][0] == "b")
    [(id, record)] = entry.result
    entry.result = [(id, altered(record, lock=given.result[0][1].lock))]


@complains("make ready left 't'/'early' out, and moved jobs that are due later")
def a_job_that_is_not_made_ready(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.result = entry.result[1:]


@complains("'lost'/'x' was taken for lost after .* s of silence; its type's timeout is 4")
def a_job_taken_for_lost_too_early(run: Recorded) -> None:
    ending, _ = lost(run)
    accepted_at = next(
        each.time for each in run.endings if any(e.name == "accept" and e.type == "lost" for e in each.journal)
    )
    ending.time = accepted_at + 3.999


@complains("the timeout of 't' was written as 11.0, expected 10")
def another_timeout_is_written(run: Recorded) -> None:
    ending, entry = run.first("set timeout")
    ending.written[entry.keys.timeout] = fdb.tuple.pack((11.0,))


@complains("it wrote nothing, but must have changed 't'/'a'")
def an_add_that_writes_nothing(run: Recorded) -> None:
    ending, _ = run.first("add")
    ending.commit_version, ending.written = None, {}


@complains("'t'/'a' must be ready data=1.*, but was not written")
def a_record_that_is_not_written(run: Recorded) -> None:
    ending, entry = run.first("add")
    del ending.written[entry.keys.data + pack_id("a")]


@complains("jobs of 't' have changed, but nobody was told")
def a_change_that_nobody_is_told_of(run: Recorded) -> None:
    ending, entry = run.first("update")
    del ending.written[entry.keys.watch_activity]


@complains("'t'/'a' was written as ready.*, but no operation has changed it from missing")
def a_write_without_an_operation(run: Recorded) -> None:
    ending, _ = run.first("add")
    ending.journal.clear()


@complains("'t'/'b' was written as ready.*, but no operation has changed it from ready")
def an_identical_resubmit_that_writes(run: Recorded) -> None:
    ending, same = run.first("resubmit")
    added, made = run.first("add", lambda _, entry: entry.id == "b")
    same.arguments, same.result = (Change(UNSET, UNSET, UNSET),), made.result
    data_key, record = stored_in(added, made)
    ending.written[data_key] = record.encode()


@complains("at the end: 't'/'a' is .*: nothing is stored")
def a_job_that_is_not_there_at_the_end(run: Recorded) -> None:
    del run.stored[run.first("add")[1].keys.data + pack_id("a")]


@pytest.mark.parametrize(("wrong", "pattern"), WRONGS)
def test_the_history_complains_of(wrong: Wrong, pattern: str) -> None:
    run = recorded().copy()
    wrong(run)
    complaints = replayed(run).complaints
    assert any(re.search(pattern, complaint) for complaint in complaints), complaints
