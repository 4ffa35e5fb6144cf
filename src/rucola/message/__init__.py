"""Messages, in memory and in bytes.

The package depends on no file, socket or request. A CommitLog, a pull response and Spark all hold the same record
bytes, so one codec (`record`) serves all three.
"""

from rucola.message.message import Message, MessageExt, MessageInner, MessageInnerBatch

__all__ = ["Message", "MessageExt", "MessageInner", "MessageInnerBatch"]
