"""The handlers that tests of the dashboard in a browser run, in a process of their own."""

import asyncio
from typing import Any

from jobs_service import Discard, JobsService, RunningJob

jobs = JobsService()


@jobs.handler("email", slots=4, max_attempts=2, backoff=3600, jitter=0)
async def email(job: RunningJob, args: dict[str, Any]) -> dict[str, Any]:
    """Send nothing; what happens is what the data say."""
    await job.progress(1, 3, f"talking to {args.get('to')}")
    if args.get("fails") == "always":
        raise Discard(f"no such mailbox '{args.get('to')}'")
    if args.get("fails"):
        raise TimeoutError(f"smtp.example.org did not answer within {args.get('n')} s")
    if args.get("waits"):
        await job.progress(2, 3, "waiting for the answer")
        await asyncio.Event().wait()
    return {"sent": True, "message": 9_007_199_254_740_993}


@jobs.handler("thumbnail", slots=2)
async def thumbnail(args: dict[str, Any]) -> dict[str, Any]:
    """Make nothing smaller."""
    return {"file": f"{args['image']}-640.png"}


@jobs.cron("0 3 * * *", timezone="Europe/Berlin")
async def nightly() -> None: ...


@jobs.every("1h", type="refresh", missed="skip")
async def refresh() -> None: ...
