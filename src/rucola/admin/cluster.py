"""ClusterAdmin: name servers and brokers, their configuration, figures and permissions."""

from __future__ import annotations

from rucola import settings
from rucola.admin.requests import Asking, each, settled
from rucola.errors import BrokerError, ConfigError
from rucola.protocol.body import decode_body
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.group import (
    ConsumeStatsList,
    GetConsumeStatsInBrokerRequestHeader,
    decode_consume_stats_list,
)
from rucola.protocol.kv import (
    ORDER_TOPIC_CONFIG,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    KVTable,
    PutKVConfigRequestHeader,
)
from rucola.protocol.route import (
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerResponseHeader,
    WritePermOfBrokerRequestHeader,
)
from rucola.protocol.stats import BrokerStatsData, ViewBrokerStatsDataRequestHeader


class ClusterAdmin(Asking):
    """Part of AdminClient."""

    # Figures.

    async def fetch_broker_runtime_stats(self, address: str) -> dict[str, str]:
        """A broker's own figures, by Apache's names (`brokerVersionDesc`, `putTps` …)."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_body(KVTable, answer.body).table

    async def view_broker_stats_data(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One statistic of a broker. BrokerError where nothing was counted under that name and key."""
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        answer = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return decode_body(BrokerStatsData, answer.body)

    async def fetch_consume_stats_in_broker(
        self, address: str, *, only_ordered: bool = False, timeout_ms: float | None = None
    ) -> ConsumeStatsList:
        """How far every group of a broker has come. With many groups it may take longer than other answers."""
        header = GetConsumeStatsInBrokerRequestHeader(is_order=str(only_ordered).lower())
        extra_ms = 0 if timeout_ms is None else timeout_ms - self.timeout_ms
        answer = await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header, extra_ms=extra_ms)
        return decode_consume_stats_list(answer.body)

    # Configuration.

    async def get_broker_config(self, address: str) -> dict[str, str]:
        """A broker's settings."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        return settings.parse(answer.body.decode("utf-8", "replace"))

    async def update_broker_config(self, address: str, changes: dict[str, str]) -> None:
        """Change settings of a running broker. BrokerError names a key that cannot be changed, or its value."""
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=_rendered(changes))

    async def get_name_server_config(self) -> dict[str, dict[str, str]]:
        """The settings of every name server, by its address."""
        addresses = self._name_servers.addresses
        answers = await each(self._ask(address, RequestCode.GET_NAMESRV_CONFIG) for address in addresses)
        tables = (settings.parse(answer.body.decode("utf-8", "replace")) for answer in answers)
        return dict(zip(addresses, tables, strict=True))

    async def update_name_server_config(self, changes: dict[str, str]) -> None:
        """Change settings of every name server."""
        await self._tell_namesrvs(RequestCode.UPDATE_NAMESRV_CONFIG, body=_rendered(changes))

    # Cleaning.

    async def clean_expired_consumer_queue(self, address: str) -> None:
        """Let a broker drop what its ConsumeQueues hold of messages that are gone."""
        await self._ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topic(self, address: str) -> None:
        """Let a broker drop the ConsumeQueues of topics that were deleted."""
        await self._ask(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired_commit_log(self, address: str) -> None:
        """Let a broker delete CommitLog files that are old enough, whatever the hour."""
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    # Permissions.

    async def wipe_write_perm_of_broker(self, broker_name: str) -> dict[str, int]:
        """Let nobody send to a broker: for every name server the number of topics this concerns."""
        header = WritePermOfBrokerRequestHeader(broker_name=broker_name)
        addresses, code = self._name_servers.addresses, RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answers = await settled(self._ask(address, code, header) for address in addresses)
        counts = [answer.decode_header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count for answer in answers]
        return dict(zip(addresses, counts, strict=True))

    async def add_write_perm_of_broker(self, broker_name: str) -> dict[str, int]:
        """Let everybody send to a broker again: for every name server the number of topics this concerns."""
        header = WritePermOfBrokerRequestHeader(broker_name=broker_name)
        addresses, code = self._name_servers.addresses, RequestCode.ADD_WRITE_PERM_OF_BROKER
        answers = await settled(self._ask(address, code, header) for address in addresses)
        counts = [answer.decode_header(AddWritePermOfBrokerResponseHeader).add_topic_count for answer in answers]
        return dict(zip(addresses, counts, strict=True))

    # The name servers' key-value table.

    async def get_kv_config(self, namespace: str, key: str) -> str | None:
        """A value; None where there is none."""
        header = KVConfigRequestHeader(namespace=namespace, key=key)
        try:
            answer = await self._ask_namesrv(RequestCode.GET_KV_CONFIG, header)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.decode_header(GetKVConfigResponseHeader).value

    async def get_kv_list_by_namespace(self, namespace: str) -> dict[str, str]:
        """All keys and values of a namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace=namespace)
        try:
            answer = await self._ask_namesrv(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return decode_body(KVTable, answer.body).table

    async def create_and_update_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server."""
        await self._tell_namesrvs(
            RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        )

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Take a value out at every name server."""
        await self._tell_namesrvs(RequestCode.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace=namespace, key=key))

    async def examine_order_conf(self, topic: str) -> dict[str, int]:
        """How many queues an ordered topic has on which broker name; empty where the topic is not ordered."""
        value = await self.get_kv_config(ORDER_TOPIC_CONFIG, topic) or ""
        try:
            return order_conf(value)
        except ConfigError as error:
            raise ConfigError(f"order of topic {topic}: {error}") from None

    async def delete_order_conf(self, topic: str) -> None:
        """The topic is ordered no more."""
        await self.delete_kv_config(ORDER_TOPIC_CONFIG, topic)

    async def create_or_update_order_conf(self, topic: str, queue_counts: dict[str, int]) -> None:
        """Tell every name server how many queues the ordered topic has on each of the broker names."""
        value = ";".join(f"{name}:{count}" for name, count in queue_counts.items())
        await self.create_and_update_kv_config(ORDER_TOPIC_CONFIG, topic, value)


def order_conf(text: str) -> dict[str, int]:
    """How many queues on which broker name, from `broker-a:4;broker-b:4`. ConfigError for anything else."""
    try:
        return {name: int(count) for name, count in (part.rsplit(":", 1) for part in text.split(";") if part)}
    except ValueError:
        raise ConfigError(f"{text!r} does not read broker-a:4;broker-b:4") from None


def _rendered(changes: dict[str, str]) -> bytes:
    return settings.render(changes).encode("utf-8")


def shortest_rate(rates: str) -> float:
    """Return the rate of the shortest window, 1.5 of `1.5 0.7 0.2`.

    Apache's broker leaves the value empty for the first ten seconds after its start; the rate is 0 then.
    """
    first, _, _ = rates.partition(" ")
    return float(first or 0)
