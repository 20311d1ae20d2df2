"""The suite of subscriptions over HTTP: the same tests, with a client in the place of the service."""

from tests.service.subscriptions.test_events import *  # noqa: F403
from tests.service.subscriptions.test_subscriptions import *  # noqa: F403
from tests.service.subscriptions.test_waiting import *  # noqa: F403

# It does two things in one transaction.
del test_a_finished_job_resubmitted_before_the_notifier_looked_goes_on  # noqa: F821
