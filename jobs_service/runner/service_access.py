"""The runner's interface to the service whose jobs it runs: the service of its process, or one over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from jobs_service.errors import StoreError
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.queue import AcceptTerms, EmptyQueue
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.layer.type_settings import Declared
from jobs_service.model import JobType, RunningJob, Worker
from jobs_service.redaction import Redaction
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Watch

if TYPE_CHECKING:
    from jobs_service.runner.ticker import AddedTicks, Periodic

T = TypeVar("T")

Held: TypeAlias = tuple[Place, bytes]
"""A running job's place and lock."""

EndCall: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""The end of a run: an operation of `layer.running_jobs`, the job's place, and its lock with the other arguments."""


class ServiceAccess(Protocol):
    """One service, as the runner sees it. It raises the errors of JobsService."""

    @property
    def settings(self) -> Settings:
        """The settings, such as pauses between attempts."""

    @property
    def sources(self) -> Sources:
        """Wall-clock time and randomness."""

    @property
    def worker(self) -> Worker:
        """Executes the operations of running jobs."""

    @property
    def batch(self) -> Batch:
        """The most jobs and bytes for one call about many jobs."""

    @property
    def own_runs(self) -> dict[bytes, Mapping[bytes, object]]:
        """The runner's jobs by packed type and lock: its own service does not declare them lost."""

    @property
    def serves_threads(self) -> bool:
        """Whether `beat_in_thread` is available."""

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        """Call `beat` in a thread, while the loop may be blocked; the same errors."""

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type; they change when the store's directory is moved."""

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        """Repeat an operation while it raises passing errors; see Context.retried."""

    async def declare(
        self, keys: TypeKeys, wanted: Declared, secret: Redaction | None
    ) -> tuple[Declared, Redaction | None]:
        """Make a missing type, and store its handler's declarations; return the effective ones."""

    async def accept(self, keys: TypeKeys, terms: AcceptTerms) -> list[RunningJob] | EmptyQueue:
        """Take jobs on these terms, or return a watch on the queue.

        Jobs that are accepted for a canceled caller are released.
        """

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether accepts of a type have recently collided with accepts of other processes."""

    async def count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        """Return the number of due jobs of a type, counted up to a limit, of priorities up to a packed one."""

    async def beat(self, held: Sequence[Held]) -> list[LockStatus]:
        """Renew the locks of running jobs of one type; return the status of each lock."""

    async def look(
        self, keys: TypeKeys, held: Sequence[Held], *, watched: bool
    ) -> tuple[list[LockStatus], list[Watch]]:
        """Return the status of locks, and a watch on the type's canceled jobs.

        Args:
            keys: the type's keys.
            held: the type's jobs.
            watched: whether the caller has a watch already; then the answer has none.
        """

    async def timeout(self, keys: TypeKeys) -> tuple[float | None, Watch]:
        """Return a type's activity timeout in seconds, None if the type does not exist, and a watch on it."""

    async def redaction(self, keys: TypeKeys) -> tuple[Redaction, Watch]:
        """Return the redaction of a type's jobs, and a watch on it."""

    def end_all(
        self, calls: Sequence[EndCall], answer: Callable[[Sequence[Exception | None]], None], size: int
    ) -> None:
        """End runs, each independent of the others.

        Args:
            calls: the ends of the runs; all of one type.
            answer: called with the error of each, None for success.
            size: approximate bytes of the values that they write.
        """

    async def end(self, call: EndCall) -> None:
        """End one run by itself."""

    def note_healthy(self, held: Held, answered: Callable[[RunningJob | Exception], object], size: int) -> None:
        """Count a running job's attempts anew.

        Args:
            held: the job.
            answered: called with the changed job, or the error.
            size: approximate bytes of the write.
        """

    async def tick(self, periodic: Periodic, most: int, seen: float | None) -> AddedTicks:
        """Add a periodic handler's due jobs, up to so many; see `ticker.add_due`."""

    async def watch_tick(self, periodic: Periodic, key: bytes) -> Watch | None:
        """Return a watch on the obstacle to a tick's job; None if it is gone."""
