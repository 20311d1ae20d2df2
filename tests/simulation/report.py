"""What came of a simulated run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from jobs_service.testing import Plan


@dataclass
class Report:
    """What came of a run.

    Attributes:
        plan: what was run.
        violations: what was wrong, a line each that begins with its kind and a colon.
        events: the last events, oldest first.
        operations, faults, deviations: those that were carried out, hit, and deviated; as in Plan.
        cells: how often each cell of the operations table was visited: (operation, what the job was before).
        seconds: virtual time that passed.
        digest: of the whole trace; equal for equal runs.
    """

    plan: Plan
    violations: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    deviations: list[int] = field(default_factory=list)
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    digest: str = ""
