"""BrokerAdmin: configuration, statistics and clean-up of one broker, addressed as "host:port"."""

from __future__ import annotations

from typing import Final

from rucola import settings
from rucola.admin.requests import AdminRequests
from rucola.domain.pending import PendingMessages
from rucola.domain.statistics import BrokerStatsData, ConsumeStatsList
from rucola.errors import BrokerError
from rucola.protocol.body import decode_body
from rucola.protocol.broker_stats import ViewBrokerStatsDataRequestHeader
from rucola.protocol.codes import RequestCode
from rucola.protocol.group import GetConsumeStatsInBrokerRequestHeader, decode_consume_stats_list
from rucola.protocol.kv import KVTable

PENDING_MS: Final = 25_000
"""Added to the timeout of a request that visits all queues and offsets."""


class BrokerAdmin:
    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # Statistics.

    async def runtime_stats(self, address: str) -> dict[str, str]:
        """Return the broker's runtime figures, by Apache's names (`brokerVersionDesc`, `putTps` …)."""
        response = await self._requests.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_body(KVTable, response.body).table

    async def stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return one statistic of a broker. BrokerError if nothing was counted under this name and key."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        response = await self._requests.invoke(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return decode_body(BrokerStatsData, response.body)

    async def rate(self, address: str, name: str, key: str) -> tuple[float, int]:
        """Return messages per second in the last minute, and messages in the last 24 hours, of one statistic."""
        try:
            data = await self.stats(address, name, key)
        except BrokerError:
            return 0.0, 0  # the broker has counted nothing
        return data.stats_minute.tps, data.day_count

    async def consume_stats(
        self, address: str, *, only_ordered: bool = False, timeout_ms: float | None = None
    ) -> ConsumeStatsList:
        """Return the consumer offsets of all or only ordered groups; many groups need a longer `timeout_ms`."""
        header = GetConsumeStatsInBrokerRequestHeader(is_order=str(only_ordered).lower())
        # `invoke` adds to the client's timeout; a shorter one makes this negative.
        extra_ms = 0 if timeout_ms is None else timeout_ms - self._requests.timeout_ms
        code = RequestCode.GET_BROKER_CONSUME_STATS
        response = await self._requests.invoke(address, code, header, extra_ms=extra_ms)
        return decode_consume_stats_list(response.body)

    async def pending(self, address: str) -> PendingMessages:
        """Return what a broker still has to deliver, and what is not consumed. BrokerError if it is Apache's."""
        response = await self._requests.invoke(address, RequestCode.GET_PENDING_MESSAGES, extra_ms=PENDING_MS)
        return decode_body(PendingMessages, response.body)

    async def process_report(self, address: str) -> str:
        """Return the stacks of a broker's threads and tasks. BrokerError if it is Apache's."""
        response = await self._requests.invoke(address, RequestCode.GET_PROCESS_REPORT)
        return response.body.decode("utf-8", "replace")

    # Configuration.

    async def config(self, address: str) -> dict[str, str]:
        response = await self._requests.invoke(address, RequestCode.GET_BROKER_CONFIG)
        return settings.parse(response.body.decode("utf-8", "replace"))

    async def update_config(self, address: str, changes: dict[str, str]) -> None:
        """Change the configuration of a running broker. BrokerError names a rejected key or value."""
        body = settings.render(changes).encode("utf-8")
        await self._requests.invoke(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    # Clean-up.

    async def clean_expired_consume_queues(self, address: str) -> None:
        """Delete ConsumeQueue files whose messages have expired."""
        await self._requests.invoke(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(self, address: str) -> None:
        """Delete the ConsumeQueues of deleted topics."""
        await self._requests.invoke(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired_commit_log(self, address: str) -> None:
        """Delete expired CommitLog files now, instead of at the configured hour."""
        await self._requests.invoke(address, RequestCode.DELETE_EXPIRED_COMMITLOG)


def shortest_rate(rates: str) -> float:
    """Return the rate of the shortest window, 1.5 of `1.5 0.7 0.2`. The value is empty shortly after Apache's start."""
    rate, _, _ = rates.partition(" ")
    return float(rate or 0)
