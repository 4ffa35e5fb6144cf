"""Migrations: an Alembic environment for the reliability tables, driven by `rucola.reliable.migration`."""
