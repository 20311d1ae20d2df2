"""FastAPI with the runner in its lifespan, and a job's events to the browser.

uvicorn fastapi_app:app --timeout-graceful-shutdown 2
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse

from jobs_service import InvalidJob, JobNotFound, JobsService, RunningJob

jobs = JobsService()


@jobs.handler("report", grace=5)
async def report(job: RunningJob, numbers: list[int]) -> int:
    await job.progress(1, 2, "adding up")
    await asyncio.sleep(numbers[0])
    return sum(numbers)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with jobs, asyncio.TaskGroup() as group:
        running = group.create_task(jobs.run())
        yield
        running.cancel()  # running jobs get their grace period, then they are released


app = FastAPI(lifespan=lifespan)


@app.exception_handler(InvalidJob)
async def refuse(request: Request, error: InvalidJob) -> JSONResponse:  # data that does not fit the handler
    return JSONResponse({"error": str(error)}, status_code=422)


@app.get("/ready")
async def ready() -> str:
    if not jobs.slot_uses():  # the runner has failed, or not begun
        raise HTTPException(503, "jobs are not run here")
    return "ready"


@app.post("/reports", status_code=202)
async def add(numbers: list[int]) -> dict[str, str]:
    job = await jobs.enqueue(report, numbers)
    return {"id": str(job.id)}


@app.get("/reports/{id}/events")
async def events(id: str) -> StreamingResponse:
    async def stream() -> AsyncIterator[str]:
        # `async with`, so that a listener who goes away is unsubscribed at once
        async with jobs.subscribe("report", id) as changes:
            try:
                async for change in changes:  # without arguments and traceback, which a browser must not get
                    shown = {"state": change.state, "result": change.result}
                    yield f"data: {json.dumps(shown)}\n\n"
            except JobNotFound:
                yield "event: missing\ndata: null\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.get("/reports/{id}", response_class=HTMLResponse)
async def page(id: str) -> str:
    return """<!doctype html><title>Report</title><p>...</p><script>
      const events = new EventSource(location.pathname + "/events")
      events.onmessage = event => {
        const { state, result } = JSON.parse(event.data)
        document.querySelector("p").textContent = result ?? state
        if (["finished", "removed"].includes(state)) events.close()  // or the browser asks again
      }
      events.addEventListener("missing", () => events.close())
    </script>"""
