"""What the interface says of itself: its OpenAPI document, and a page for each problem."""

from __future__ import annotations

from html import escape

from starlette.responses import Response

from jobs_service import __version__
from jobs_service.http import openapi, problems, wire
from jobs_service.http.endpoint import ENDPOINTS, Call, endpoint
from jobs_service.http.refusals import KINDS, Refusal
from jobs_service.http.roles import Role


@endpoint(
    "GET", "/openapi.json", Role.NOBODY, "This interface as OpenAPI 3.1", media={"application/json": "The document"}
)
async def openapi_document(call: Call) -> Response:
    found = openapi.document(ENDPOINTS, __version__)
    found["servers"] = [{"url": call.request.scope.get("root_path") or "/"}]
    return Response(wire.dumps(found), media_type="application/json")


@endpoint("GET", "/problems/{problem}", Role.NOBODY, "What a problem means", media={"text/html": "A page"})
async def problem(call: Call) -> Response:
    name = call.names["problem"]
    if name in KINDS:
        status, title, _ = KINDS[name]
    elif name in problems.ERRORS:
        kind = problems.ERRORS[name]
        status, title = kind.http_status, problems.title_of(kind)
    else:
        raise Refusal("not-found", "there is no such problem")
    return _page(name, f"<p>{escape(title)}</p><p>Status {status}.</p>")


def _page(title: str, body: str) -> Response:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – jobs_service</title>'
    head += '<meta name="viewport" content="width=device-width"></head>'
    text = f"{head}<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    return Response(text, media_type="text/html")
