"""AdminClient: all administrative requests, in parts that return values and print nothing.

    client.cluster        clusters, broker names and addresses
    client.brokers        configuration, statistics and clean-up of one broker
    client.name_servers   configuration, write permissions and the key-value table of all name servers
    client.topics         topics, their routes and queues
    client.groups         consumer and producer groups, their members and consume stats
    client.offsets        consumer offsets: commit, reset, clone
    client.messages       queries by key and id, direct consumption, message track
    client.dead_letters   dead letters, and sending them again
    client.traces         message traces
    client.traffic        message rates of topics and their consumer groups
    client.access         accounts, users and policies of access control
    client.export         documents that describe a whole cluster
    client.monitor        problems of consumer groups
    client.doctor         messages that wait and are not consumed
    client.health         what is wrong with a cluster, the most urgent first
    client.capacity       how much of a broker's resources its load takes
    client.diagnosis      why a group is behind
    client.drain          a broker without messages; topics and groups on another broker
    client.roles          masters and slaves: their state, promotion, planned switchover

Apache's servers understand all requests except the ones of `roles`, `drain` and some of `doctor`.

Corresponds to `DefaultMQAdminExtImpl` and `MQAdminImpl` of Apache RocketMQ 4.9.8. Deliberate differences: a key query
is not limited to 64 records, returns the newest first, and reports whether it was truncated and which brokers failed;
one call resets the offsets of a group with or without members.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Self

from rucola.acl.credentials import Credentials
from rucola.admin.access import AccessAdmin
from rucola.admin.brokers import BrokerAdmin
from rucola.admin.capacity import CapacityAdmin
from rucola.admin.cluster import ClusterAdmin
from rucola.admin.dead_letters import DeadLetterAdmin
from rucola.admin.doctor import DoctorAdmin
from rucola.admin.drain import DrainAdmin
from rucola.admin.export import ExportAdmin
from rucola.admin.group_diagnosis import GroupDiagnosis
from rucola.admin.groups import GroupAdmin
from rucola.admin.health import HealthAdmin
from rucola.admin.message_track import MessageTracker
from rucola.admin.messages import MessageAdmin
from rucola.admin.monitor import MonitorAdmin
from rucola.admin.name_servers import NameServerAdmin
from rucola.admin.offsets import OffsetAdmin
from rucola.admin.queries import MessageIndexes
from rucola.admin.requests import REQUEST_TIMEOUT_MS, AdminRequests
from rucola.admin.roles import RoleAdmin
from rucola.admin.topics import TopicAdmin
from rucola.admin.traces import TraceAdmin
from rucola.admin.traffic import TrafficAdmin
from rucola.client.connection_options import ConnectionOptions
from rucola.remoting.tls import ClientTls


class AdminClient:
    """Administrative access to a cluster: `async with AdminClient("127.0.0.1:9876") as client`, on one event loop.

    `namesrv` lists the name servers, "host:port;host:port", or is ConnectionOptions; `timeout_ms` bounds each request.
    All methods raise RemotingConnectError or RemotingTimeout without a response, BrokerError for an error code, and
    TopicNotFound for a topic without a route.
    """

    def __init__(
        self,
        namesrv: str | ConnectionOptions | None = None,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        requests = AdminRequests(ConnectionOptions.of(namesrv, tls, credentials), timeout_ms)
        self._requests = requests
        self.cluster = ClusterAdmin(requests)
        self.brokers = BrokerAdmin(requests)
        self.name_servers = NameServerAdmin(requests)
        self.topics = TopicAdmin(requests)
        self.groups = GroupAdmin(requests, self.cluster, self.topics)
        self.offsets = OffsetAdmin(requests, self.cluster, self.topics, self.groups)
        indexes = MessageIndexes(requests, self.topics, self.brokers)
        tracker = MessageTracker(self.cluster, self.topics, self.groups, indexes)
        self.messages = MessageAdmin(requests, self.cluster, indexes, tracker)
        self.dead_letters = DeadLetterAdmin(requests, self.cluster, self.topics, self.offsets, self.messages)
        self.traces = TraceAdmin(self.messages)
        self.traffic = TrafficAdmin(self.brokers, self.cluster, self.topics, self.groups, self.offsets)
        self.access = AccessAdmin(requests)
        self.export = ExportAdmin(requests, self.cluster, self.brokers, self.topics, self.groups)
        self.roles = RoleAdmin(requests, self.cluster)
        self.doctor = DoctorAdmin(requests, self.cluster, self.topics, self.groups, self.offsets)
        self.diagnosis = GroupDiagnosis(self.cluster, self.brokers, self.topics, self.groups)
        self.drain = DrainAdmin(self.cluster, self.brokers, self.name_servers, self.topics, self.groups, self.offsets)
        self.health = HealthAdmin(self.cluster, self.brokers, self.groups, self.roles, self.doctor, self.diagnosis)
        self.capacity = CapacityAdmin(self.brokers, self.topics, self.groups, self.doctor)
        self.monitor = MonitorAdmin(requests, self.groups, self.dead_letters)

    @property
    def namesrv(self) -> str:
        """The addresses of the name servers, "host:port;host:port"."""
        return self._requests.namesrv

    @property
    def connection(self) -> ConnectionOptions:
        """Connection options, for other clients of the same cluster."""
        return self._requests.connection

    def restrict(self, brokers: Collection[str]) -> None:
        """Ask only these brokers and the name servers from now on; ConfigError for any other address.

        For a program that asks on behalf of others, who choose addresses.
        """
        self._requests.brokers = frozenset(brokers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._requests.close()
