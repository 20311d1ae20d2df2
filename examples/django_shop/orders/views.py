"""The addresses of the shop."""

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from jobs_service import outbox
from orders.jobs import jobs, receipt
from orders.models import Order


def add(request: HttpRequest) -> JsonResponse:
    """Take an order: its row and its job are one transaction."""
    with transaction.atomic():
        order = Order.objects.create(to=request.POST["to"])
        job = outbox.enqueue(connection, receipt, order.id)
    return JsonResponse({"order": order.id, "job": job}, status=202)


def look(request: HttpRequest, id: int) -> JsonResponse:
    """Show an order."""
    return JsonResponse({"receipt": Order.objects.get(id=id).receipt})


def ready(request: HttpRequest) -> HttpResponse:
    """Answer 503 while no process runs the jobs."""
    runs = any(process.state == "running" and process.handlers for process in jobs.processes())
    return HttpResponse(status=200 if runs else 503)


urlpatterns = [path("orders", add), path("orders/<int:id>", look), path("ready", ready)]
