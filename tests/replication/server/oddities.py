"""How servers differ, and what can happen on the way: what a test switches on."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Oddities:
    """The server behaves as CouchDB 3.5 does unless told otherwise; sizes in bytes, times in seconds."""

    multipart: bool = True
    """Attachments follow as multipart where the client accepts that; otherwise JSON with stubs."""
    part_lengths: bool = True
    """Parts of a multipart answer carry Content-Length."""
    gzip_text: bool = True
    """Attachments of a text type are kept, and sent in multipart answers, compressed."""
    opaque_sequences: bool = True
    """Sequences are strings; otherwise numbers."""
    one_line_changes: bool = False
    """A normal feed of changes is one line."""
    pending: bool = True
    possible_ancestors: bool = True
    bulk_get: bool = True
    bulk_get_missing_form: bool = False
    """A revision that is not there is `{"missing": REV}` instead of an error."""
    local_conflicts: bool = False
    """A `_local` document written without its present `_rev` is a conflict."""
    instance_start_time: str = "0"
    heartbeats: bool = True
    revs_limit: int = 1000
    validate: Callable[[dict[str, Any]], str | None] | None = None
    """What a validation function would say: a reason to forbid this document, or None."""
    breaks_down: Callable[[dict[str, Any]], bool] | None = None
    """Whether the validation function has an error at run time for this document."""
    partitioned: bool = False
    """Ids of documents must be of the form partition:id."""
    filters: Mapping[str, Callable[[dict[str, Any], Mapping[str, str]], bool]] = field(default_factory=dict)
    """Filter functions by "DESIGN/NAME", given a document and the query."""
    max_document: int | None = None
    max_attachment: int | None = None
    max_request: int | None = None
    agrees: bool = True
    """A client that asks with Expect whether to send a body is answered."""
    users: dict[str, str] = field(default_factory=dict)
    """Passwords by name; where there are any, only they may ask."""
    sessions: bool = True
    session_wants_basic: bool = False
    """`_session` itself wants Basic authentication too."""
    latency: float = 0.0
    compresses: str | None = None
    """What stands before the server compresses every answer, "gzip" or "deflate", whatever the client accepts."""


@dataclass(slots=True)
class Fault:
    """What happens to the requests whose "METHOD /path?query" the pattern finds, as often as `times` says.

    With `cut` the connection ends after so many bytes of the answer's body; with `drop` before the answer. `until`
    holds the request up. `replace` changes the body's bytes.
    """

    pattern: str
    status: int | None = None
    body: Mapping[str, Any] | list[Any] = field(
        default_factory=lambda: {"error": "fault", "reason": "as the test wants it"}
    )
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    drop_after_work: bool = False
    """The request is carried out, and the connection ends before the answer."""
    cut: int | None = None
    until: asyncio.Event | None = None
    replace: tuple[bytes, bytes] | None = None
    times: int = 1
    hits: int = 0

    def meets(self, request: str) -> bool:
        """Whether the fault happens to this request; counts."""
        if self.hits >= self.times or not re.search(self.pattern, request):
            return False
        self.hits += 1
        return True
