"""A type of job with secret fields, and jobs with a secret in every part."""

from __future__ import annotations

from jobs_service import JobError, JobsService, Outcome

SECRET = "S3cret-4111-1111"


async def charge(jobs: JobsService) -> None:
    """Leave jobs with a secret in every part: one failed, one runs, one waits."""
    await jobs.set_type_timeout("pay", 60)
    await jobs.set_redaction("pay", ["card.number", "result:token"])
    for id in ("failed", "runs", "waits"):
        await jobs.add("pay", id, {"card": {"number": SECRET, "of": "Ada"}})
    first = await jobs.accept("pay")
    assert first is not None
    await first.progress(1, 2, f"charging {SECRET}")
    error = JobError("ValueError", f"{SECRET!r} is refused", f"Traceback\n  pay({SECRET!r})")
    await first.finish(outcome=Outcome.FAILED, result={"token": SECRET}, error=error)
    second = await jobs.accept("pay")
    assert second is not None
    await second.progress(1, 2, f"charging {SECRET}")
