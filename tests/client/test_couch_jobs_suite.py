"""The couch_jobs suite over HTTP: the same tests, with a client in the place of the service."""

from tests.service.test_couch_jobs_suite import *  # noqa: F403
