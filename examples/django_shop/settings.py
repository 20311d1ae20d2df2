"""The settings of the shop."""

SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "orders.views"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "jobs_service.django.JobsBackend", "OPTIONS": {"outbox": "default"}}}
