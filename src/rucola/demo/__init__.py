"""Demonstration `rucola demo`: a year of flights through broker, consumer, archive and SQL."""
