"""A task of the shop, by Django's own framework. In settings.py:

TASKS = {"default": {"BACKEND": "jobs_service.django.JobsBackend", "OPTIONS": {"outbox": "default"}}}
"""

from django.db import connection, transaction
from django.tasks import task

from jobs_service import outbox
from jobs_service.django import JobContext
from orders.models import Order


@task(priority=10, takes_context=True)
def invoice(context: JobContext, order: int) -> str:
    with transaction.atomic():
        if outbox.once(connection, context.job):  # once, whatever dies between this commit and the task's end
            Order.objects.filter(id=order).update(receipt=f"invoice in attempt {context.attempt}")
    return f"invoice {order}"


def take(to: str) -> str:
    """Take an order: its row and its task are one transaction. Return the id of the task's result."""
    with transaction.atomic():
        order = Order.objects.create(to=to)
        result = invoice.enqueue(order.id)
    return str(result.id)
