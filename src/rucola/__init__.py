"""Rucola: a message system byte- and wire-compatible with Apache RocketMQ, whose log is a Spark table."""

from pathlib import Path

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Return whether the hot path of this installation was compiled (RUCOLA_COMPILE=1)."""
    return any((Path(__file__).parent / "message").glob("record.*.so"))
