"""NameServerAdmin: configuration, write permissions and the key-value table of the name servers.

Changes go to every name server. Namespace ORDER_TOPIC_CONFIG has the queues of ordered topics: `broker-a:4;broker-b:4`
for a topic with four queues on each of two broker names.
"""

from __future__ import annotations

from rucola import settings
from rucola.admin.requests import AdminRequests, gather_fail_fast
from rucola.domain.route import ORDER_TOPIC_CONFIG
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.kv import (
    GetKVConfigResponseHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
)
from rucola.protocol.route import (
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerResponseHeader,
    WritePermOfBrokerRequestHeader,
)


class NameServerAdmin:
    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # Configuration.

    async def configs(self) -> dict[str, dict[str, str]]:
        addresses = self._requests.name_servers
        responses = await gather_fail_fast(
            self._requests.invoke(address, RequestCode.GET_NAMESRV_CONFIG) for address in addresses
        )
        configs = (settings.parse(response.body.decode("utf-8", "replace")) for response in responses)
        return dict(zip(addresses, configs, strict=True))

    async def update_config(self, changes: dict[str, str]) -> None:
        body = settings.render(changes).encode("utf-8")
        await self._requests.invoke_all_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    # Write permissions of brokers.

    async def wipe_write_permission(self, broker_name: str) -> dict[str, int]:
        """Remove a broker's write permission; return the number of changed topics by name server."""
        header = WritePermOfBrokerRequestHeader(broker_name=broker_name)
        responses = await self._requests.invoke_all_name_servers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        counts = [
            response.decode_header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count for response in responses
        ]
        return dict(zip(self._requests.name_servers, counts, strict=True))

    async def add_write_permission(self, broker_name: str) -> dict[str, int]:
        """Restore a broker's write permission; return the number of changed topics by name server."""
        header = WritePermOfBrokerRequestHeader(broker_name=broker_name)
        responses = await self._requests.invoke_all_name_servers(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        counts = [response.decode_header(AddWritePermOfBrokerResponseHeader).add_topic_count for response in responses]
        return dict(zip(self._requests.name_servers, counts, strict=True))

    # The key-value table.

    async def get_kv(self, namespace: str, key: str) -> str | None:
        header = KVConfigRequestHeader(namespace=namespace, key=key)
        try:
            response = await self._requests.invoke_name_server(RequestCode.GET_KV_CONFIG, header)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return response.decode_header(GetKVConfigResponseHeader).value

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        header = PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        await self._requests.invoke_all_name_servers(RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv(self, namespace: str, key: str) -> None:
        header = KVConfigRequestHeader(namespace=namespace, key=key)
        await self._requests.invoke_all_name_servers(RequestCode.DELETE_KV_CONFIG, header)

    # Ordered topics.

    async def order_conf(self, topic: str) -> dict[str, int]:
        """Return an ordered topic's number of queues by broker name, otherwise empty."""
        value = await self.get_kv(ORDER_TOPIC_CONFIG, topic) or ""
        try:
            return parse_order_conf(value)
        except ConfigError as error:
            raise ConfigError(f"order of topic {topic}: {error}") from None

    async def put_order_conf(self, topic: str, queue_counts: dict[str, int]) -> None:
        """Declare a topic ordered, with a number of queues by broker name."""
        value = ";".join(f"{name}:{count}" for name, count in queue_counts.items())
        await self.put_kv(ORDER_TOPIC_CONFIG, topic, value)

    async def delete_order_conf(self, topic: str) -> None:
        await self.delete_kv(ORDER_TOPIC_CONFIG, topic)


def parse_order_conf(text: str) -> dict[str, int]:
    """Parse `broker-a:4;broker-b:4`. ConfigError for any other form."""
    try:
        return {name: int(count) for name, count in (part.rsplit(":", 1) for part in text.split(";") if part)}
    except ValueError:
        raise ConfigError(f"{text!r} is no order configuration: write broker-a:4;broker-b:4") from None
