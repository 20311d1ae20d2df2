"""The readable pages of the interface: all addresses, and the meaning of each problem. They load nothing else."""

from __future__ import annotations

from html import escape
from typing import Any

from starlette.responses import Response

from jobs_service import __version__
from jobs_service.http import openapi, problems, wire
from jobs_service.http.endpoint import ENDPOINTS, Call, endpoint
from jobs_service.http.refusals import KINDS, Refusal
from jobs_service.http.roles import Role

_HTML = {"text/html": "A page"}


@endpoint(
    "GET", "/openapi.json", Role.NOBODY, "This interface as OpenAPI 3.1", media={"application/json": "The document"}
)
async def openapi_document(call: Call) -> Response:
    found = openapi.document(ENDPOINTS, __version__)
    found["servers"] = [{"url": call.request.scope.get("root_path") or "/"}]
    return Response(wire.dumps(found), media_type="application/json")


@endpoint("GET", "/docs", Role.NOBODY, "This interface, to be read", media=_HTML)
async def docs(call: Call) -> Response:
    found = openapi.document(ENDPOINTS, __version__)
    parts = [_addresses(found), "<h2>What requests and answers look like</h2>"]
    parts += [_schema(name, schema) for name, schema in sorted(found["components"]["schemas"].items())]
    about = '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
    return _page("HTTP interface", about + "".join(parts))


@endpoint("GET", "/problems/{problem}", Role.NOBODY, "What a problem means", media=_HTML)
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


def _addresses(found: dict[str, Any]) -> str:
    rows = []
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            takes = _named(operation.get("requestBody", {}).get("content", {}))
            query = ", ".join(each["name"] for each in operation["parameters"] if each["in"] == "query")
            answers = "; ".join(
                f"{status} {_named(each.get('content', {}))}".strip()
                for status, each in operation["responses"].items()
                if status != "default"
            )
            cells = [f"{method.upper()} {path}", operation["summary"], operation.get("description", ""), query]
            shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f"<tr>{shown}<td>{takes}</td><td>{answers}</td></tr>")
    names = ("Request", "What it does", "Who may", "Query", "Takes", "Answers")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _named(content: dict[str, Any]) -> str:
    """Return the types of a body, with links to their schemas."""
    found = []
    for media, each in content.items():
        name = each["schema"].get("$ref", "").rpartition("/")[2]
        found.append(f'<a href="#{escape(name)}">{escape(name)}</a>' if name else escape(media))
    return ", ".join(found)


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(field)}</td><td><code>{escape(wire.dumps(each).decode())}</code></td></tr>"
        for field, each in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", "").partition("\n")[0])
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p><table><tbody>{rows}</tbody></table>'
