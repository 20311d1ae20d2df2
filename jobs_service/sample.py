"""A sample application to try a store and a daemon with; docker-compose.yml runs it.

`jobs-service serve jobs_service.sample:jobs` serves it. It uses the store that JOBS_SERVICE_STORE names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import JobsService, JobTransaction, RunningJob

TOTAL: Final = b"jobs_service.sample/words"
"""The key of the sample's own data: the words of all texts so far, as a little-endian integer."""

jobs = JobsService()


@dataclass
class Text:
    """The data of a `count-words` job.

    Attributes:
        text: the text whose words are counted.
        top: number of most frequent words in the result.
    """

    text: str
    top: int = 3


@jobs.handler("count-words", slots=8, max_attempts=5)
async def count_words(job: RunningJob, args: Text) -> None:
    """Count the words of a text and add them to the total exactly once, even if processes die meanwhile."""
    counts = Counter(args.text.lower().split())

    async def add_to_total(tx: JobTransaction) -> dict[str, Any]:
        tx.kv.add(TOTAL, counts.total().to_bytes(8, "little"))
        return {"words": counts.total(), "top": dict(counts.most_common(args.top))}

    await job.finish_with(add_to_total)


@jobs.every("30s", type="word-total", missed="skip", keep=3600)
async def word_total() -> int:
    """Return how many words all texts had together."""

    async def read(tx: JobTransaction) -> int:
        return int.from_bytes(await tx.kv.get(TOTAL) or b"", "little")

    return await jobs.transact(read)


@jobs.handler("health", max_attempts=1, timeout=10)
async def health() -> None:
    """Do nothing: a finished job of this type shows that store and daemon work."""
