"""Demonstration: sends a year of flights through broker, consumer, archive and SQL. Started by `rucola demo`."""
