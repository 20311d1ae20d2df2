"""What a worker sees of its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs_service import Job, Outcome, RunningJob
from jobs_service.model import UNSET, Ending, Progress, ProgressReport
from tests.jobs import running, told


class Worker:
    """Notes what a running job's own methods call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        self.calls.append(("update", job, data))
        return job

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        self.calls.append(("finish", job, *ending))
        return job

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> Job:
        self.calls.append(("finish_with", job, function))
        return job

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        self.calls.append(("progress", job, progress))
        return job

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        self.calls.append(("resubmit", job, data, priority, run_at))
        return job

    async def _release(self, job: RunningJob) -> Job:
        self.calls.append(("release", job))
        return job


async def test_the_methods_of_a_running_job_are_its_workers_operations() -> None:
    worker = Worker()
    found = running(worker)
    await found.update()
    await found.update(None)
    await found.finish({"a": 1}, outcome=Outcome.FAILED)
    await found.finish(result=7)
    await found.resubmit(priority=5, run_at=None)
    await found.release()
    await found.finish_with(len)
    await found.progress(1, 2, "half")
    assert worker.calls == [
        ("update", found, UNSET),
        ("update", found, None),
        ("finish", found, {"a": 1}, Outcome.FAILED, UNSET, None),
        ("finish", found, UNSET, Outcome.SUCCEEDED, 7, None),
        ("resubmit", found, UNSET, 5, None),
        ("release", found),
        ("finish_with", found, len),
        ("progress", found, Progress(1, 2, "half")),
    ]


async def test_a_job_accepted_without_a_service_says_how_to_go_on() -> None:
    found = running()
    calls = [
        found.update(),
        found.finish(),
        found.resubmit(),
        found.release(),
        found.progress(1),
        found.finish_with(len),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="use the transaction's own operations"):
            await call


@pytest.mark.parametrize(("following", "flag"), [(None, False), ((b"\x14", None), True)])
def test_the_resubmit_flag_is_a_truth_value(following: Any, flag: bool) -> None:
    found = running(next=following)
    assert bool(found.resubmit) is flag
    assert found.resubmit == flag
    assert flag == found.resubmit
    assert found.resubmit != (not flag)
    assert hash(found.resubmit) == hash(flag)
    assert repr(found.resubmit) == str(found.resubmit) == repr(flag)
    assert ("again" if found.resubmit else "done") == ("again" if flag else "done")


def test_progress_is_a_value_until_it_is_called() -> None:
    none, some = running().progress, running(run_data=told()).progress
    assert isinstance(some, ProgressReport)
    assert (bool(none), none.value, repr(none)) == (False, None, "None")
    assert (bool(some), some.value) == (True, Progress(1, 2, "half"))
    assert repr(some) == str(some) == repr(Progress(1, 2, "half"))
