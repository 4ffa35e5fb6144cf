"""ClusterAdmin: clusters, broker names and broker addresses, as registered at the name servers."""

from __future__ import annotations

from rucola.admin.requests import AdminRequests, masters_of
from rucola.domain.role import MASTER_ID
from rucola.domain.route import ClusterInfo
from rucola.errors import ConfigError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode


class ClusterAdmin:
    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def info(self) -> ClusterInfo:
        """Return all clusters, their broker names, and the addresses of each broker name."""
        response = await self._requests.invoke_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return decode_body(ClusterInfo, response.body)

    async def masters(self, cluster: str) -> dict[str, str]:
        """Return every master's address by broker name. ConfigError for an unknown cluster."""
        info = await self.info()
        if cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"there is no cluster {cluster}; the name server knows {known}", subject=cluster)
        return masters_of(info.broker_addr_table[name] for name in sorted(info.cluster_addr_table[cluster]))

    async def addresses(self, cluster: str) -> list[str]:
        """Return the addresses of all masters and slaves. ConfigError for an unknown cluster."""
        masters = await self.masters(cluster)
        table = (await self.info()).broker_addr_table
        return [address for name in masters for address in table[name].broker_addrs.values()]

    async def broker_name(self, address: str) -> str:
        """Return the name of the broker at an address. ConfigError if none is registered."""
        for data in (await self.info()).broker_addr_table.values():
            if address in data.broker_addrs.values():
                return data.broker_name
        raise ConfigError(f"no broker is registered at {address}")

    async def master_address(self, broker_name: str) -> str:
        """Return the address of the master with a broker name. ConfigError if there is none."""
        brokers = (await self.info()).broker_addr_table
        data = brokers.get(broker_name)
        if data is None or MASTER_ID not in data.broker_addrs:
            known = ", ".join(sorted(brokers)) or "none"
            raise ConfigError(f"there is no broker {broker_name} with a master; the name server knows {known}")
        return data.broker_addrs[MASTER_ID]
