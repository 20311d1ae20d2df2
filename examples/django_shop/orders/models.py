"""Orders, with their receipts."""

from django.db import models


class Order(models.Model):
    """An order."""

    to = models.CharField(max_length=200)
    receipt = models.TextField(default="")
