"""The jobs of the shop."""

from django.db import connection, transaction

from jobs_service import BlockingJob, outbox
from jobs_service.sync import JobsService
from orders.models import Order

jobs = JobsService()


@jobs.handler("receipt")
def receipt(job: BlockingJob, order: int) -> None:
    try:
        with transaction.atomic():
            if outbox.once(connection, job):  # once, whatever dies between this commit and the job's end
                Order.objects.filter(id=order).update(receipt=f"sent by {job.id!s}")
    finally:
        connection.close()  # handlers run in threads, each with a connection of its own
