"""Errors of business reliability, derived from `MQError`."""

from __future__ import annotations

from rucola.errors import MQError


class ReliableError(MQError):
    """An invalid reliability table, option or message."""


class SchemaError(ReliableError):
    """A database whose reliability tables are missing, too old or too new."""


class LeaseLost(ReliableError):
    """A worker lost its claim on a message during processing; its transaction was rolled back."""
