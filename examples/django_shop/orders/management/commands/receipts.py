"""python manage.py receipts: has receipts sent that are missing, and waits for them."""

from typing import Any

from django.core.management.base import BaseCommand

from orders.jobs import jobs, receipt
from orders.models import Order


class Command(BaseCommand):
    """The command."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Add a job per order without a receipt; a job that is there already is no second one."""
        missing = Order.objects.filter(receipt="").values_list("id", flat=True)
        for job in jobs.enqueue_many(receipt, missing, unique=True):
            jobs.result(receipt, job.id, timeout=60)
            self.stdout.write(f"order {job.data}: sent")
