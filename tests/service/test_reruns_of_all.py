"""Every operation, in any state and in any sequence: run twice, it has the effect of one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import Job, JobsError, JobsService, JobTransaction, NewJob, Outcome, RunningJob
from tests.checker import assert_sound
from tests.service.rerunning import ONE, every_fate, opened
from tests.service.sequences import OPERATIONS, Operation, observable, play
from tests.service.support import FAR_AWAY, J1, J2, T1, T2, accepted, drained, listed, new_jobs, own_keys
from tests.shares import ALL
from tests.unsure import UNSURE_KINDS, Fate, past_states
from tests.virtual_time import run_virtual

Act = Callable[[JobsService, RunningJob | None], Awaitable[Any]]
"""Does something on a service; the second argument is the worker of J1, if one had it when the scene began."""
STATES = ("missing", "pending", "running", "flagged", "canceled", "finished")


async def set_scene(jobs: JobsService, state: str) -> RunningJob | None:
    """Bring J1 into a state, and J2 into the queue behind it; return who is or was J1's worker."""
    worker = None
    if state != "missing":
        await jobs.add(T1, J1, "first", priority=-1)
    if state not in ("missing", "pending"):
        worker = await accepted(jobs)
    if state == "flagged":
        await jobs.resubmit(T1, J1, priority=2)
    if state == "canceled":
        await jobs.remove(T1, J1)
    if state == "finished" and worker is not None:
        await worker.finish("done")
    await jobs.add(T1, J2, "behind")
    return worker


async def _nothing(jobs: JobsService, worker: RunningJob | None) -> Any:
    return None


def by_worker(how: str, *arguments: Any, **keywords: Any) -> Act:
    """Return what J1's worker does, with its own handle."""

    async def act(jobs: JobsService, worker: RunningJob | None) -> Any:
        return None if worker is None else await getattr(worker, how)(*arguments, **keywords)

    return act


def in_turn(*acts: Act) -> Act:
    """Return several acts, each done as far as it can be."""

    async def act(jobs: JobsService, worker: RunningJob | None) -> Any:
        return [await result_of(each, jobs, worker) for each in acts]

    return act


async def accept_one(jobs: JobsService, worker: RunningJob | None) -> Any:
    return await jobs.accept(T1, timeout=0)


async def run_one(jobs: JobsService, worker: RunningJob | None) -> Any:
    job = await jobs.accept(T1, timeout=0)
    return None if job is None else await job.finish("run by others")


async def several_at_once(jobs: JobsService, worker: RunningJob | None) -> Any:
    async def function(tx: JobTransaction) -> list[Any]:
        tx.kv.add(b"own/count", ONE)
        added = await tx.add(T1, "beside")
        if worker is not None:
            await tx.update(worker, "mine")
        taken = await tx.accept(T1)
        return [added, taken, await tx.add(T1, J1, "mine too", if_exists="resubmit")]

    return await jobs.transact(function)


async def count_alone(jobs: JobsService, worker: RunningJob | None) -> Any:
    async def function(tx: JobTransaction) -> bytes | None:
        before = await tx.kv.get(b"own/count")
        tx.kv.add(b"own/count", ONE)
        return before

    return await jobs.transact(function)


DEEDS: dict[str, Act] = {
    "add": lambda jobs, worker: jobs.add(T1, J1, "mine", priority=1),
    "add_or_resubmit": lambda jobs, worker: jobs.add(T1, J1, "mine", priority=1, if_exists="resubmit"),
    "add_or_ignore": lambda jobs, worker: jobs.add(T1, J1, "mine", if_exists="ignore"),
    "add_many": lambda jobs, worker: jobs.add_many(T1, new_jobs(J1, "beside"), if_exists="resubmit"),
    "resubmit": lambda jobs, worker: jobs.resubmit(T1, J1, data="mine", priority=3),
    "remove": lambda jobs, worker: jobs.remove(T1, J1),
    "remove_by_force": lambda jobs, worker: jobs.remove(T1, J1, force=True),
    "accept": accept_one,
    "accept_many": lambda jobs, worker: jobs.accept_many(T1, 2, timeout=0),
    "update": by_worker("update", "mine"),
    "finish": by_worker("finish", "mine", outcome=Outcome.FAILED),
    "release": by_worker("release"),
    "resubmit_by_the_worker": by_worker("resubmit", priority=3),
    "several_at_once": several_at_once,
    "count_alone": count_alone,
    "clear_the_type": lambda jobs, worker: jobs.clear_type_timeout(T1),
}
OTHERS: dict[str, Act] = {
    "do_nothing": _nothing,
    "accept": accept_one,
    "run": run_one,
    "remove": lambda jobs, worker: jobs.remove(T1, J1, force=True),
    "remove_and_add": in_turn(
        lambda jobs, worker: jobs.remove(T1, J1, force=True), lambda jobs, worker: jobs.add(T1, J1, "theirs")
    ),
    "resubmit": lambda jobs, worker: jobs.resubmit(T1, J1, data="theirs", priority=-2),
    "run_and_resubmit": in_turn(run_one, lambda jobs, worker: jobs.resubmit(T1, J1, data="theirs")),
    "run_and_remove": in_turn(run_one, lambda jobs, worker: jobs.remove(T1, J1)),
    "count": count_alone,
}


async def result_of(act: Act, jobs: JobsService, worker: RunningJob | None) -> Any:
    """Do something and return what an application sees of the result, or of the error."""
    try:
        return _seen(await act(jobs, worker))
    except JobsError as error:
        return (type(error).__name__, error.type, error.id)


def _seen(result: Any) -> Any:
    if isinstance(result, list):
        return [_seen(each) for each in result]
    return observable(result) if isinstance(result, Job) else result


async def left_behind(jobs: JobsService) -> Any:
    """Return all that can be seen of a store, and the order of its queue."""
    await assert_sound(jobs.store)
    found = sorted(map(observable, await listed(jobs)), key=repr)
    return found, await own_keys(jobs), await drained(jobs, due_by=FAR_AWAY)


async def play_scene(kind: str, state: str, deed: Act, others: Act, fate: Fate) -> tuple[bool, Any]:
    """Do the deed, whose commit meets the fate, and what others do meanwhile, or afterwards if it writes nothing.

    Return whether it met its fate, and all that was seen.
    """
    async with opened(kind) as unsure:
        worker = await set_scene(unsure.jobs, state)
        theirs: list[Any] = []

        async def meanwhile() -> None:
            theirs.append(await result_of(others, unsure.others, worker))

        mine = await result_of(deed, unsure.next(fate, meanwhile), worker)
        met = bool(unsure.fates.met)
        unsure.fates.plan([])
        if not met:
            await meanwhile()
        return met, [mine, theirs, await left_behind(unsure.jobs)]


async def play_in_order(state: str, deed: Act, others: Act, *, others_first: bool) -> Any:
    """Do the same in a certain order, every commit answered; return all that was seen."""
    async with opened("memory") as sure:
        worker = await set_scene(sure.jobs, state)
        if others_first:
            theirs = await result_of(others, sure.others, worker)
            mine = await result_of(deed, sure.jobs, worker)
        else:
            mine = await result_of(deed, sure.jobs, worker)
            theirs = await result_of(others, sure.others, worker)
        return [mine, [theirs], await left_behind(sure.jobs)]


# every operation, on a job in every state, with others doing anything meanwhile


PAIRS = [(deed, others) for row, deed in enumerate(DEEDS) for others in [*OTHERS][row % 2 :: 2]]
"""Every deed, with half of what others do; with all of it where all cases are to be tried."""
if ALL:
    PAIRS = [(deed, others) for deed in DEEDS for others in OTHERS]


@every_fate
@pytest.mark.parametrize(("deed", "others"), PAIRS)
async def test_an_unanswered_deed_is_done_before_what_others_do_and_a_lost_one_after_it(
    deed: str, others: str, fate: Fate
) -> None:
    ever_met = False
    # The stores share all but the commit: each deed, and whatever others do, meets every state on each of them.
    everywhere = (list(DEEDS).index(deed) + list(OTHERS).index(others)) % len(STATES)
    for number, state in enumerate(STATES):
        kinds = UNSURE_KINDS if number == everywhere else UNSURE_KINDS[:1]
        found = [await play_scene(kind, state, DEEDS[deed], OTHERS[others], fate) for kind in kinds]
        met = found[0][0]
        expected = await play_in_order(state, DEEDS[deed], OTHERS[others], others_first=met and fate == "lost")
        assert found == [(met, expected)] * len(kinds), state
        ever_met |= met
    assert ever_met, "no commit was of unknown outcome"


PLANS: list[list[Fate]] = [
    ["lost"],
    ["unanswered"],
    ["conflict"],
    ["lost", "lost", "unanswered"],
    ["conflict", "unanswered"],
    ["lost", "conflict", "lost"],
    ["late", "timed out"],
]


async def play_beside_others(kind: str, state: str, deed: Act, planned: list[Fate]) -> Any:
    """Do the deed in one group commit with others' operations, whose commits meet these fates; return what was seen."""
    async with opened(kind) as unsure:
        jobs = unsure.jobs
        await jobs.add_many(T2, [*new_jobs("worked", "finished"), NewJob("removed", run_at=FAR_AWAY)])
        worked, finished = await jobs.accept_many(T2, 2, timeout=0)
        worker = await set_scene(jobs, state)
        unsure.fates.plan(planned)
        seen = await asyncio.gather(
            jobs.add(T2, "added", "new"),
            result_of(deed, jobs, worker),
            worked.update("updated"),
            finished.finish("finished"),
            jobs.remove(T2, "removed"),
        )
        assert not unsure.fates.coming, "the fates were not met"
        left = await left_behind(jobs)
    assert kind == "fdb" or past_states(jobs.store) == 0
    return [*map(_seen, seen), left]


@pytest.mark.parametrize("planned", PLANS, ids="-".join)
@pytest.mark.parametrize("deed", DEEDS)
def test_operations_that_share_a_commit_of_unknown_outcome_do_what_they_do_when_it_is_answered(
    deed: str, planned: list[Fate]
) -> None:
    place = list(DEEDS).index(deed) + PLANS.index(planned)
    for state in STATES if ALL else STATES[place % 3 :: 3]:
        expected = run_virtual(play_beside_others("memory", state, DEEDS[deed], []))
        for kind in UNSURE_KINDS:
            run = asyncio.run if kind == "fdb" else run_virtual  # a cluster has its own time
            assert run(play_beside_others(kind, state, DEEDS[deed], planned)) == expected, (kind, state)


FATES: list[Fate] = ["answered", "unanswered", "lost", "conflict"]


async def play_surely_and_unsurely(kind: str, groups: list[list[Operation]], fates: list[Fate]) -> None:
    async with opened(kind) as sure:
        expected = await play(sure.jobs, groups)
    async with opened(kind) as unsure:
        unsure.fates.plan(fates)  # the first is that of setting the type's timeout
        assert await play(unsure.jobs, groups) == expected
        unsure.fates.plan([])


UNSURE = st.lists(st.sampled_from(FATES), min_size=1, max_size=15)


# any sequence of operations


@pytest.mark.parametrize("kind", UNSURE_KINDS)
@settings(max_examples=40, deadline=None)
@given(groups=st.lists(OPERATIONS, max_size=5), fates=UNSURE)
def test_any_transactions_whose_commits_are_unknown_end_as_if_answered(
    kind: str, groups: list[list[Operation]], fates: list[Fate]
) -> None:
    asyncio.run(play_surely_and_unsurely(kind, groups, fates))
