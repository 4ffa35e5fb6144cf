"""Rucola: a message system byte- and wire-compatible with Apache RocketMQ, whose log is a Spark table."""

from pathlib import Path

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Tell whether the hot path of this installation is machine code, as RUCOLA_COMPILE=1 makes it."""
    return any((Path(__file__).parent / "message").glob("record.*.so"))
