"""Versions of the schema, oldest first.

A published version is never edited; a change is a new one.

A revision reads MAJOR.MINOR. A minor step only adds what older programs can ignore (a table, an index, a column that
may be NULL or has a default), so both versions of the program run during an upgrade.
"""
