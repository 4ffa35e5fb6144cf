"""Errors of business reliability, below `MQError`."""

from __future__ import annotations

from rucola.errors import MQError


class ReliableError(MQError):
    """A reliability table, option or message that cannot be used as asked."""


class SchemaError(ReliableError):
    """A database whose reliability tables are missing, too old or too new."""


class LeaseLost(ReliableError):
    """A worker lost its claim on a message while it worked; its transaction was rolled back."""
