"""How much of the server one request, one client and all of them together may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobs_service.http.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server; bytes and seconds.

    Attributes:
        body: of a request, and of a line of NDJSON.
        head: of request line and headers.
        head_time: within which these must come.
        body_time: that a client may be silent within a body.
        send_time: that a client may take nothing of what is sent to it.
        requests: answered at the same time.
        polls: that wait for jobs at the same time.
        poll_time: that one of them waits.
        streams: of events that are open.
        streams_of_client: of these, of one client.
        jobs_of_stream: that one stream tells of.
        heartbeat: between two signs of life on a stream.
    """

    body: int = 1 << 20
    head: int = 32 << 10
    head_time: float = 10.0
    body_time: float = 10.0
    send_time: float = 60.0
    requests: int = 1000
    polls: int = 1000
    poll_time: float = 30.0
    streams: int = 20_000
    streams_of_client: int = 10_000
    jobs_of_stream: int = 1000
    heartbeat: float = 15.0

    @property
    def whole_body_time(self) -> float:
        """Within which a body must have come that is read as a whole, or that nobody wants any more."""
        return 6 * self.body_time


class Places:
    """Counts what is open at the same time.

    Args:
        what: is counted, for messages.
        most: of them.
        of_client: of one client; None for as many.
    """

    def __init__(self, what: str, most: int, of_client: int | None = None) -> None:
        self._what = what
        self._most = most
        self._of_client = of_client
        self._clients: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def one(self, client: str = "") -> Iterator[None]:
        """Take a place as long as the block runs.

        Raises:
            Refusal: there is none.
        """
        if self.taken >= self._most:
            raise Refusal("busy", f"{self._most} {self._what} are open; try again later", headers={"Retry-After": "1"})
        if self._of_client is not None and self._clients[client] >= self._of_client:
            what = f"this client has {self._of_client} {self._what} open; close some first"
            raise Refusal("too-many-requests", what, headers={"Retry-After": "5"})
        self.taken += 1
        self._clients[client] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]
