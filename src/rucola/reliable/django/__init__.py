"""A Django app with the tables: `"rucola.reliable.django"` in INSTALLED_APPS.

    apps          the app, with the label `rucola_reliable`
    models        Stub, Receipt and Done, to read
    operations    the migrations' one operation
    migrations    one for each version of the tables

Models and migrations are made from `rucola.reliable.schema`, the only description of the tables.
"""
