"""Migrations of the reliability tables, driven by `rucola.reliable.migration`."""
