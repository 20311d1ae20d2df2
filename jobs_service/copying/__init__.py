"""Copies all jobs from one store into another, in bounded transactions.

Nothing is written to the source. The target has a note of the copy's progress, written in the same transactions as
the jobs, so that a killed copy continues from its last transaction. Until the copy is complete and has been compared
with the source, the copied types are paused in the target, and types that are new there have no activity timeout: no
jobs are accepted from half a queue, or added to it.

Order: within a type, running jobs (if they are copied at all) come first, then the ready ones in the order of their
queue, then the rest in the order of their ids. Versionstamps cannot be copied; writing in this order gives new ones in
the same order.
"""

from __future__ import annotations

from jobs_service.copying.copy import copy_jobs
from jobs_service.copying.results import Copied, CopyRefused, Counts, Step
from jobs_service.layer.batch_bounds import Batch

__all__ = ["Batch", "Copied", "CopyRefused", "Counts", "Step", "copy_jobs"]
