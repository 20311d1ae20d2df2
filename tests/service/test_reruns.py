"""Commits that may or may not have happened, on stores that really meet them: no operation doubles, loses or refuses.

A commit is unanswered (it happens, and nobody knows) or lost (it does not, and nobody knows); others may act before
anybody looks which it was.
"""

from __future__ import annotations

from jobs_service import Job, JobState, JobTransaction, RunningJob
from tests.service.rerunning import FINISHED, ONE, PENDING, RUNNING, Unsure, every_fate
from tests.service.support import J1, J2, T1, accepted, drained, own_keys, running
from tests.unsure import Fate

# with effects of the application's own


@every_fate
async def test_a_rerun_function_of_several_operations_has_each_effect_once(unsure: Unsure, fate: Fate) -> None:
    worker = await running(unsure.jobs)
    await unsure.jobs.add(T1, J2)

    async def function(tx: JobTransaction) -> tuple[Job, RunningJob]:
        tx.kv.add(b"own/count", ONE)
        await tx.add(T1, "next")
        done = await tx.finish(worker, "done")
        taken = await tx.accept(T1)
        assert taken is not None
        return done, await tx.update(taken, "begun")

    done, taken = await unsure.next(fate).transact(function)
    assert (done.state, done.data, taken.id, taken.data) == (FINISHED, "done", J2, "begun")
    assert await own_keys(unsure.jobs) == {b"own/count": ONE}
    assert await unsure.jobs.active_ids(T1) == [J2]
    assert await drained(unsure.jobs) == ["next"]
    assert (await taken.finish()).data == "begun"


@every_fate
async def test_effects_of_a_function_that_only_looks_at_jobs_happen_once_though_others_write_the_same_keys(
    unsure: Unsure, fate: Fate
) -> None:
    await unsure.jobs.add(T1, J1)

    async def append(tx: JobTransaction) -> JobState:
        job = await tx.get(T1, J1)
        tx.kv.set(b"own/list", (await tx.kv.get(b"own/list") or b"") + job.state[:1].encode())
        return job.state

    async def others() -> None:
        await unsure.others.transact(append)
        await accepted(unsure.others)

    assert await unsure.next(fate, others).transact(append) is (RUNNING if fate == "lost" else PENDING)
    assert await own_keys(unsure.jobs) == {b"own/list": b"pr" if fate == "lost" else b"pp"}
