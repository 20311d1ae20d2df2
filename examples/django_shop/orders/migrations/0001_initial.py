"""The tables: of orders, and of the jobs that are added in transactions."""

from typing import ClassVar

from django.db import migrations, models

from jobs_service import outbox


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("to", models.CharField(max_length=200)),
                ("receipt", models.TextField(default="")),
            ],
        ),
        migrations.RunSQL(outbox.schema("sqlite")),
    ]
