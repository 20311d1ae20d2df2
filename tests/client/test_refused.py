"""What no job can have is refused over HTTP as well: the server checks what the client sends as it was given."""

from tests.service.operations.test_refused import *  # noqa: F403

# What is no JSON is refused before the server knows the job.
del test_the_error_for_what_no_job_can_have_carries_the_jobs_type_and_id  # noqa: F821
