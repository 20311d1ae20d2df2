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
        requests, requests_of_client: answered at the same time, of all who have shown who they are and of one of them.
        strangers, strangers_of_address: the same of those who have not, and of one address.
        polls, polls_of_client: that wait for jobs at the same time.
        poll_time: that one of them waits.
        streams, streams_of_client: of events that are open.
        jobs_of_stream: that one stream tells of.
        followed, followed_of_client: jobs that all streams tell of, each as often as it is told.
        heartbeat: between two signs of life on a stream.
    """

    body: int = 1 << 20
    head: int = 32 << 10
    head_time: float = 10.0
    body_time: float = 10.0
    send_time: float = 60.0
    requests: int = 1000
    requests_of_client: int = 500
    strangers: int = 200
    strangers_of_address: int = 50
    polls: int = 2000
    polls_of_client: int = 1000
    poll_time: float = 30.0
    streams: int = 20_000
    streams_of_client: int = 10_000
    jobs_of_stream: int = 1000
    followed: int = 200_000
    followed_of_client: int = 20_000
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
        of_client: of one client.
    """

    def __init__(self, what: str, most: int, of_client: int) -> None:
        self._what = what
        self._most = most
        self._of_client = of_client
        self._clients: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def taken_by(self, client: str, places: int = 1) -> Iterator[None]:
        """Take places as long as the block runs.

        Args:
            client: who takes them.
            places: how many.

        Raises:
            Refusal: there are not so many.
        """
        if self.taken + places > self._most:
            raise Refusal("busy", f"{self.taken} {self._what} are open; try again later", headers={"Retry-After": "1"})
        if self._clients[client] + places > self._of_client:
            what = f"of {self._what} one client may have {self._of_client}, and has {self._clients[client]}"
            raise Refusal("too-many-requests", f"{what}; close some first", headers={"Retry-After": "5"})
        self.taken += places
        self._clients[client] += places
        try:
            yield
        finally:
            self.taken -= places
            self._clients[client] -= places
            if not self._clients[client]:
                del self._clients[client]
