"""python manage.py migrate, then python manage.py runserver; and beside it what worker.py says."""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
