"""Replication of one log to slaves.

A master has the HA service, a slave the HA client and the table sync.
"""
