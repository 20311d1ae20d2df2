"""The jobs, for a process that is not Django's: jobs-service serve worker:jobs --outbox sqlite:shop.db"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from orders.jobs import jobs as jobs  # noqa: E402 - models can be imported now
