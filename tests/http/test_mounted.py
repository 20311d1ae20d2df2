"""The HTTP interface below a prefix of a FastAPI application, with that application's lifespan and authentication."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.types import Receive, Scope, Send

from jobs_service import AccessDenied, JobsService, ServiceClosed
from jobs_service.client import JobsClient
from jobs_service.http.server import bound
from tests.http.support import events, problem

KEYS = {"k-ada": ("ada", "admin"), "k-grafana": ("grafana", "read")}


class Known:
    """The application's own authentication: a middleware that notes who asks."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            scope["known"] = KEYS.get(key)
        await self._app(scope, receive, send)


async def ask_the_middleware(scope: Mapping[str, Any]) -> Any:
    await asyncio.sleep(0)
    return scope["known"]


def require_somebody(request: Request) -> str:
    if request.scope["known"] is None:
        raise HTTPException(401)
    return str(request.scope["known"][0])


def application(jobs: JobsService) -> FastAPI:
    """Return an application with a route of its own beside what is mounted."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with jobs:
            await jobs.set_type_timeout("email", 30)
            yield

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(Known)

    @app.post("/mails/{id}")
    async def send(id: str, name: Annotated[str, Depends(require_somebody)]) -> dict[str, Any]:
        job = await jobs.add("email", id, {"by": name})
        return {"state": job.state.value}

    app.mount("/inner/jobs", jobs.asgi(authenticate=ask_the_middleware))
    return app


@asynccontextmanager
async def served(jobs: JobsService) -> AsyncIterator[str]:
    """Serve the application as its own server does, and yield where."""
    listening = bound("127.0.0.1", 0)
    config = uvicorn.Config(application(jobs), lifespan="on", log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def test_it_works_below_a_prefix_with_the_lifespan_and_the_users_of_the_application() -> None:
    jobs = JobsService("memory:")
    ada, grafana = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    async with served(jobs) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        assert (await client.post("/mails/a")).status_code == 401
        assert (await client.post("/mails/a", headers=ada)).json() == {"state": "pending"}
        problem(await client.get("/inner/jobs/v1/types"), 401, "unauthorized")
        found = await client.get("/inner/jobs/v1/types/email/jobs/a", headers=grafana)
        assert found.json()["data"] == {"by": "ada"}
        problem(await client.delete("/inner/jobs/v1/types/email/jobs/a", headers=grafana), 403, "forbidden")
        page = await client.get("/inner/jobs/", headers=ada)
        assert 'href="/inner/jobs/type?type=email"' in page.text
        nothing = problem(await client.get("/inner/jobs/v1/typs", headers=ada), 404, "not-found")
        assert nothing["detail"] == "there is no such address; /inner/jobs/openapi.json has all of them"
        assert "/inner/jobs/" not in json.dumps((await client.get("/openapi.json")).json())
        async with client.stream("GET", "/inner/jobs/v1/types/email/jobs/a/events", headers=grafana) as stream:
            told = events(stream)
            assert (await anext(told))[2]["state"] == "pending"
            job = await jobs.accept("email")
            assert job is not None
            await job.finish()
            states = [data.get("state") async for _, _, data in told]
            assert "finished" in states
    with pytest.raises(ServiceClosed):  # the application's lifespan has ended
        await jobs.types()


async def test_a_client_of_ours_reaches_it_with_the_keys_of_the_application() -> None:
    async with served(JobsService("memory:")) as url:
        async with JobsClient(f"{url}/inner/jobs", token="k-ada") as remote:
            await remote.add("email", "b", 1)
            job = await remote.accept("email")
            assert job is not None
            await job.finish(result=2)
            assert (await remote.get("email", "b")).result == 2
        async with JobsClient(f"{url}/inner/jobs", token="k-nobody") as stranger:
            with pytest.raises(AccessDenied):
                await stranger.types()
