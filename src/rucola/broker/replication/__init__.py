"""Replication of one log to slaves: HA service of a master, HA client and table sync of a slave."""
