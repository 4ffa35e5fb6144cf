"""Warnings about subscribed topics that do not exist, with the most similar name.

A missing topic is no error, since its first message may create it later; but the name may be misspelled.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable

from rucola.client.route import NameServers
from rucola.errors import MQError
from rucola.message.topics import DLQ_PREFIX, RETRY_PREFIX
from rucola.outages import Outages
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.route import TopicList

logger = logging.getLogger(__name__)


class MissingTopics:
    """Subscribed topics of one group that no name server has. Belongs to one event loop."""

    def __init__(self, group: str, name_servers: NameServers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._name_servers = name_servers
        self._outages = Outages(logger, clock_s)

    async def missing(self, topic: str) -> None:
        """Report that a topic does not exist; logged at first, and then rarely. Retry topics may always be missing."""
        subject = self._subject(topic)
        if topic.startswith(RETRY_PREFIX):
            return
        # The names of all topics are requested only for a line.
        hint = await self._hint(topic) if self._outages.is_line_due(subject) else ""
        self._outages.failed(subject, f"no name server knows this topic{hint}; consumption begins when it exists")

    def found(self, topic: str) -> None:
        if self._outages.any_failing:
            self._outages.succeeded(self._subject(topic))

    def _subject(self, topic: str) -> str:
        return f"group {self._group}: subscription to topic {topic}"

    async def _hint(self, topic: str) -> str:
        request = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        try:
            response = await self._name_servers.invoke(request)
            if response.code != ResponseCode.SUCCESS:
                return ""
            known = decode_body(TopicList, response.body).topic_list
        except MQError:
            return ""
        by_lower_case = {name.lower(): name for name in known if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))}
        near = difflib.get_close_matches(topic.lower(), by_lower_case, n=1)
        return f", did you mean {by_lower_case[near[0]]}?" if near else ""
