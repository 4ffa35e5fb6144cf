"""VIEW_BROKER_STATS_DATA (315), with a `BrokerStatsData` as body of the response."""

from __future__ import annotations

from rucola.protocol.command import Header


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    stats_name: str
    stats_key: str
