"""Rucola: a message system, byte- and wire-compatible with Apache RocketMQ. Its log is a Spark table."""

__version__ = "0.1.0"
