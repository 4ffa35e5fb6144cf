"""Versions of the schema, oldest first. A published version is never edited; a change is a new one.

A minor step of MAJOR.MINOR only adds what older programs can ignore (a table, an index, a column that may be NULL or
has a default), so both versions of the program run during an upgrade.
"""

from __future__ import annotations

from rucola.reliable.migrations.versions import v1_0, v1_1, v1_2

UPGRADES = {
    "1.0": v1_0.upgrade,
    "1.1": v1_1.upgrade,
    "1.2": v1_2.upgrade,
}
