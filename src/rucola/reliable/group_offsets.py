"""Committed offsets of all consumer groups at live brokers."""

from __future__ import annotations

import asyncio

from rucola.admin import AdminClient
from rucola.admin.offsets import CommittedOffset


async def committed_offsets(namesrv: str) -> dict[str, list[CommittedOffset]]:
    """Return the offsets that every master has, by broker name. RemotingError if a broker does not answer."""
    async with AdminClient(namesrv) as admin:
        brokers = (await admin.cluster.info()).broker_addr_table
        masters = {name: data.broker_addrs[0] for name, data in brokers.items() if 0 in data.broker_addrs}
        found = await asyncio.gather(*map(admin.offsets.all, masters.values()))
        return dict(zip(masters, found, strict=True))
