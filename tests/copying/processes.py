"""What the processes do that tests of copies kill: the command itself, with batches of a size that the test chooses."""

from __future__ import annotations

from jobs_service.cli import main
from jobs_service.copying import copy as engine
from jobs_service.layer.batch_bounds import Batch


def copy(source: str, target: str, jobs: int) -> None:
    """Run `jobs-service copy`; batches are small, so that there is something to kill in between."""
    engine.DEFAULT_BATCH = Batch(jobs)  # type: ignore[misc]
    code = main(["copy", f"lmdb:{source}", f"lmdb:{target}"])
    assert code == 0, code
