"""What a message is, in memory and in bytes: the ground floor of the house.

Nothing here knows of files, sockets or requests. The same record bytes lie in a CommitLog, travel in a pull
response and feed Spark, so one codec (`record`) serves all three.
"""

from rucola.message.message import Message, MessageExt, MessageInner, MessageInnerBatch

__all__ = ["Message", "MessageExt", "MessageInner", "MessageInnerBatch"]
