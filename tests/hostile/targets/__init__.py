"""What the hostile values are handed to: every public operation, one argument at a time, the others being good."""

from __future__ import annotations

from tests.hostile.targets.handlers import HANDLERS
from tests.hostile.targets.operations import ANYWHERE
from tests.hostile.targets.running import RUNNING
from tests.hostile.targets.service import SERVICE

GROUPS = {"operations": ANYWHERE, "service": SERVICE, "handlers": HANDLERS, "running": RUNNING}
