"""Implements the methods of a running job: `job.update()`, `job.finish()` and the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs_service import run_data
from jobs_service.actors.context import StoreAccess
from jobs_service.arguments import json_of
from jobs_service.batching import GroupCommit
from jobs_service.errors import InvalidJob, JobsError, JobTooLarge, a_kind_of, shown
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.record import job_of, running_job
from jobs_service.layer.running_jobs import encoded_ending
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import UNSET, EndedJob, Ending, Job, Progress, RunningJob
from jobs_service.service.transactions import Transactions


class RunningJobCalls:
    """The Worker of the jobs that this service accepts.

    Args:
        access: of the service.
        operations: group commit, in which simultaneous operations of many jobs share a transaction.
        transactions: runs the functions of `finish_with`.
    """

    def __init__(self, access: StoreAccess, operations: GroupCommit, transactions: Transactions) -> None:
        self._access = access
        self._operations = operations
        self._transactions = transactions

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        place = self._access.place(job.type, job.id)
        json = json_of(job.type, job.id, data)
        size = len(json or b"") + job._record.size()
        return running_job(await self._operations.operate(running_jobs.update, place, job.lock, json, size=size), self)

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        place = self._access.place(job.type, job.id)
        try:
            json = run_data.progress_json(progress)
        except (InvalidJob, JobTooLarge) as error:
            raise error.about(job.type, job.id) from None
        size = len(json) + job._record.size()
        work = self._operations.operate(running_jobs.update, place, job.lock, None, json, size=size)
        return running_job(await work, self)

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        place = self._access.place(job.type, job.id)
        json, outcome, report = encoded_ending(job, ending)
        size = len(json or b"") + len(report.result or b"") + job._record.size()
        work = self._operations.operate(
            running_jobs.finish, place, job.lock, json, outcome, report, size=size, reads=place[0].retention
        )
        return job_of(await work)

    async def _finish_with(self, job: RunningJob, function: Callable[[JobTransaction], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in the same transaction; the function's return value is the result."""
        if not callable(function):
            raise JobsError(f"{shown(function)}: {a_kind_of(function)}; finish_with takes a function of a transaction")

        async def work(tx: JobTransaction) -> Job:
            result = function(tx)
            if hasattr(result, "__await__"):
                result = await result
            # A Job was returned by an operation on another job, and is no result of this one.
            return await tx.finish(job, result=UNSET if isinstance(result, Job) else result)

        ended = await self._transactions.transact(self, work)
        return EndedJob(ended.type, ended.id, ended._record)

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        place = self._access.place(job.type, job.id)
        spec = creation.spec_of(job.type, job.id, data, priority, run_at)
        size = spec.size() + job._record.size()
        return running_job(
            await self._operations.operate(running_jobs.resubmit, place, job.lock, spec, size=size), self
        )

    async def _release(self, job: RunningJob) -> Job:
        place = self._access.place(job.type, job.id)
        size = job._record.size()
        return job_of(await self._operations.operate(running_jobs.release, place, job.lock, size=size))

    def _check_caller(self) -> None:
        self._access.check_open()

    def _result_data(self, result: Any) -> Any:
        """Return a result unchanged: only the runner knows a job's handler."""
        return result

    def _ending(self, job: RunningJob, whether: bool) -> None:
        """Do nothing: only the runner keeps an account of its running jobs."""
