"""What no job can have is refused over HTTP as well: the server checks what the client sends as it was given."""

from tests.service.operations.test_refused import *  # noqa: F403
