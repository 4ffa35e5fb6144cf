"""Tables of version 1.2."""

from __future__ import annotations

from django.db import migrations

from rucola.reliable.django.operations import MigrateTables


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """Creates the tables, or upgrades older ones."""

    initial = True
    dependencies = ()
    operations = (MigrateTables("1.2"),)
