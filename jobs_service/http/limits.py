"""Limits on one request, on one client, and on all of them together."""

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
        body: size of a request's body, and of a line of NDJSON.
        head: size of request line and headers.
        body_time: longest silence of a client within a body.
        connections: open connections, idle ones included.
        requests, requests_of_client: concurrent requests of all identified clients, and of one of them.
        strangers, strangers_of_address: the same for unidentified clients, and for one address.
        polls, polls_of_client: concurrent requests that wait for jobs.
        poll_time: longest wait of one of them.
        streams, streams_of_client: open streams of events.
        jobs_of_stream: jobs of one stream.
        followed, followed_of_client: jobs of all streams together, counted once per stream.
        heartbeat: time between two signs of life on a stream.
    """

    body: int = 1 << 20
    head: int = 32 << 10
    body_time: float = 10.0
    connections: int = 5000
    requests: int = 1000
    requests_of_client: int = 500
    strangers: int = 200
    strangers_of_address: int = 50
    polls: int = 2000
    polls_of_client: int = 1000
    poll_time: float = 30.0
    streams: int = 1000
    streams_of_client: int = 500
    jobs_of_stream: int = 1000
    followed: int = 200_000
    followed_of_client: int = 20_000
    heartbeat: float = 15.0

    @property
    def whole_body_time(self) -> float:
        """Seconds to receive a whole body."""
        return 6 * self.body_time


class Places:
    """Counts things that are open at the same time.

    Args:
        what: their name, for messages.
        most: limit for all clients.
        of_client: limit for one client.
    """

    def __init__(self, what: str, most: int, of_client: int) -> None:
        self._what = what
        self._most = most
        self._of_client = of_client
        self._clients: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def taken_by(self, client: str, places: int = 1) -> Iterator[None]:
        """Take places while the block runs.

        Args:
            client: its name or address.
            places: number of places.

        Raises:
            Refusal: too few are free.
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
