"""Committed offsets of all consumer groups at live brokers."""

from __future__ import annotations

import asyncio
import logging

from rucola.admin import AdminClient
from rucola.admin.offsets import CommittedOffset
from rucola.errors import RemotingError

logger = logging.getLogger(__name__)


async def committed_offsets(namesrv: str) -> dict[str, list[CommittedOffset]]:
    """Return every master's offsets by broker name, without unreachable masters. RemotingError without name server."""
    async with AdminClient(namesrv) as admin:
        brokers = (await admin.cluster.info()).broker_addr_table
        masters = {name: data.broker_addrs[0] for name, data in brokers.items() if 0 in data.broker_addrs}

        async def offsets_of(name: str, address: str) -> list[CommittedOffset] | None:
            try:
                return await admin.offsets.all(address)
            except RemotingError as error:
                logger.warning("the consumer offsets of broker %s are left out: %s", name, error)
                return None

        found = await asyncio.gather(*(offsets_of(name, address) for name, address in masters.items()))
        return {name: offsets for name, offsets in zip(masters, found, strict=True) if offsets is not None}
