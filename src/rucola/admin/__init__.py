"""Administration: what an operator asks of name servers and brokers, as typed methods that print nothing."""

from rucola.admin.client import PAGE, AdminClient, KeyQueryResult
from rucola.message import MessageExt
from rucola.protocol.topic import TopicConfig

__all__ = ["PAGE", "AdminClient", "KeyQueryResult", "MessageExt", "TopicConfig"]
