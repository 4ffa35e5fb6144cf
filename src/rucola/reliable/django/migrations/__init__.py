"""The migrations of the tables: one for each version, so that `manage.py migrate` upgrades them."""
