"""The settings of the shop."""

SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "orders.views"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "shop.db",
        # Without these, a transaction that reads and then writes fails at once when another one has written meanwhile.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "pragma journal_mode = wal"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "jobs_service.django.JobsBackend", "OPTIONS": {"outbox": "default"}}}
