"""Replication of one log to slaves: the HA service of a master, the HA client and table sync of a slave."""
