"""Copies all jobs from one store into another, in bounded transactions.

Nothing is written to the source. What has been copied is noted in the target in the transactions that write it, so
that a copy which was killed goes on where it stopped. Until the copy is complete and has been compared with the source,
the types whose jobs are written are paused in the target, and types that are new there have no activity timeout: nobody
accepts or adds jobs to half a queue.

Order: within a type, running jobs (when they are copied at all) come first, then the ready ones in the order of their
queue, then the rest in the order of their ids. Versionstamps cannot be copied; writing in this order gives new ones in
the same order.
"""

from __future__ import annotations

from jobs_service.copying.copy import copy_jobs
from jobs_service.copying.results import Copied, CopyRefused, Counts, Step
from jobs_service.layer.batch_bounds import Batch

__all__ = ["Batch", "Copied", "CopyRefused", "Counts", "Step", "copy_jobs"]
