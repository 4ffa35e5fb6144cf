"""Messages, in memory and in bytes. No I/O: one codec (`record`) serves CommitLogs, pull responses and Spark."""

from rucola.message.message import Message, MessageExt, MessageInner, MessageInnerBatch

__all__ = ["Message", "MessageExt", "MessageInner", "MessageInnerBatch"]
