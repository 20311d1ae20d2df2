"""What the runner needs from the service whose jobs it runs: the one of its process, or one that is reached by HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from jobs_service.errors import StoreError
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.declared_settings import Declared
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.queue import EmptyQueue
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model import JobType, RunningJob, Worker
from jobs_service.redaction import Redaction
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Watch

if TYPE_CHECKING:
    from jobs_service.runner.ticker import Done, Periodic

T = TypeVar("T")

Held: TypeAlias = tuple[Place, bytes]
"""A running job's place, and its lock."""

EndCall: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""How a run ends: an operation of `layer.running_jobs`, the job's place, and its lock with the other arguments."""


class ServiceAccess(Protocol):
    """One service, as the runner sees it. Its errors are those of JobsService."""

    @property
    def settings(self) -> Settings:
        """Pauses between attempts."""

    @property
    def sources(self) -> Sources:
        """Wall-clock time and randomness."""

    @property
    def worker(self) -> Worker:
        """Does the operations of running jobs."""

    @property
    def batch(self) -> Batch:
        """The most that one of the calls below takes that are about many jobs."""

    @property
    def own_runs(self) -> dict[bytes, Mapping[bytes, object]]:
        """By type, as packed, the jobs that the runner runs, by their locks: its own service does not lose them."""

    @property
    def serves_threads(self) -> bool:
        """Whether `beat_in_thread` can be called."""

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        """Do `beat` in a thread, while the loop may stand still; raises as that."""

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type: other ones when the store's directory was moved."""

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        """Repeat an operation while it raises errors that may pass; see Context.retried."""

    async def declare(
        self, keys: TypeKeys, wanted: Declared, secret: Redaction | None
    ) -> tuple[Declared, Redaction | None]:
        """Make a type where it is missing, and store what its handler declares; return what is in force."""

    async def accept(self, keys: TypeKeys, terms: AcceptTerms) -> list[RunningJob] | EmptyQueue:
        """Take jobs on these terms, or return a watch on the queue.

        Jobs that are accepted for a caller who was canceled meanwhile are given back.
        """

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether accepts of a type have collided with those of other processes of late."""

    async def count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        """Return how many jobs of a type are due, counted up to a limit, of priorities up to a packed one."""

    async def beat(self, held: Sequence[Held]) -> list[LockStatus]:
        """Show that running jobs of one type are alive; return the status of each lock."""

    async def look(
        self, keys: TypeKeys, held: Sequence[Held], *, watched: bool
    ) -> tuple[list[LockStatus | None], list[Watch]]:
        """Return the status of locks, None where damage hides it; and a watch on the type's canceled jobs.

        Args:
            keys: of the type.
            held: its jobs.
            watched: whether there is a watch already, which was made before; then there is none in the answer.
        """

    async def timeout(self, keys: TypeKeys) -> tuple[float | None, Watch]:
        """Return a type's activity timeout in seconds, None if it does not exist, and a watch on that."""

    async def redaction(self, keys: TypeKeys) -> tuple[Redaction, Watch]:
        """Return what is secret of a type's jobs, and a watch on that."""

    def end_all(
        self, calls: Sequence[EndCall], answer: Callable[[Sequence[Exception | None]], None], size: int
    ) -> None:
        """End runs, each as if alone.

        Args:
            calls: how each ends; all of one type.
            answer: called with the error of each, None for those that succeeded.
            size: bytes of the values that they write, about.
        """

    async def end(self, call: EndCall) -> None:
        """End one run by itself."""

    def note_healthy(self, held: Held, answered: Callable[[RunningJob | Exception], object], size: int) -> None:
        """Count a running job's attempts anew.

        Args:
            held: the job.
            answered: called with the job as it is then, or why not.
            size: bytes that are written, about.
        """

    async def tick(self, periodic: Periodic, most: int, seen: float | None) -> Done:
        """Add the jobs of a periodic handler that are due, up to so many; see `ticker.add_due`."""

    async def watch_tick(self, periodic: Periodic, key: bytes) -> Watch | None:
        """Return a watch on what keeps a tick's job from being added; None when that is gone."""
