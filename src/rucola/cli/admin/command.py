"""Command group of `rucola admin`, and shared options, confirmation prompts and time formats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from rucola.admin import AdminClient, MessageQueue
from rucola.cli.option_types import ADDRESS, ADDRESSES, SINCE_HELP, TIME
from rucola.cli.output import wide_option
from rucola.cli.suggestions import SuggestingGroup
from rucola.client.name_server_addresses import DEFAULT_NAMESRV, NAMESRV_VARIABLES
from rucola.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class AdminCommands(SuggestingGroup):
    """The commands of `rucola admin`, by subject."""

    subjects = {
        "Topics": (
            "topicList", "topicStatus", "topicRoute", "topicClusterList", "updateTopic", "updateTopicPerm",
            "updateTopicList", "deleteTopic", "updateOrderConf", "allocateMQ", "queryCq",
        ),
        "Messages": (
            "queryMsgByKey", "queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg",
            "printMsgByQueue", "consumeMessage", "sendMessage",
        ),
        "Consumer and producer groups": (
            "consumerProgress", "consumerStatus", "consumerConnection", "producerConnection", "producer",
            "brokerConsumeStats", "updateSubGroup", "updateSubGroupList", "getConsumerConfig", "deleteSubGroup",
        ),
        "Consumer offsets": ("resetOffsetByTime", "resetOffset", "skipAccumulatedMessage", "cloneGroupOffset"),
        "Dead letters": ("dlqList", "printDlq", "exportDlq", "redriveDlq"),
        "Clusters, brokers and name servers": (
            "clusterList", "brokerStatus", "statsAll", "getBrokerConfig", "updateBrokerConfig", "getNamesrvConfig",
            "updateNamesrvConfig", "updateKvConfig", "deleteKvConfig", "wipeWritePerm", "addWritePerm",
        ),
        "Measuring and monitoring": ("clusterRT", "checkMsgSendRT", "sendMsgStatus", "startMonitoring"),
        "Clean-up and export": (
            "cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog", "exportMetadata", "exportConfigs",
            "exportMetrics",
        ),
    }  # fmt: skip


@click.group(cls=AdminCommands)
def admin() -> None:
    """Query and change a running cluster, with the names and flags of mqadmin.

    The exit code is 0 on success, 1 if a command failed, with the reason on stderr, and 2 if the command line was
    wrong. Destructive commands ask for confirmation unless --yes is given.

    \b
    Examples:
      rucola admin clusterList                       the cluster at localhost:9876
      rucola admin queryMsgByKey -n host:9876 -t Orders -k 4711
      ROCKETMQ_NAMESRV=host:9876 rucola admin topicStatus -t Orders --json
      ROCKETMQ_TLS_CONFIG_FILE=client.properties rucola admin clusterList      by TLS, see docs/security.md
    """


def command(name: str) -> Callable[[F], click.Command]:
    """Register a function as a command of `admin`, with the options that all commands have."""

    def decorate(function: F) -> click.Command:
        # click shows the option that was added last first: help texts begin with -n and --json.
        with_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)
        with_namesrv = click.option(
            "-n", "--namesrvAddr", "namesrv_addr", type=ADDRESSES, envvar=NAMESRV_VARIABLES, show_envvar=True,
            default=DEFAULT_NAMESRV, show_default=True, help="Name servers, host:port;host:port.",
        )(with_json)  # fmt: skip
        return admin.command(name)(wide_option(with_namesrv))

    return decorate


def call_admin(namesrv_addr: str, request: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Call `request` with an AdminClient that is open for the duration of the call, and return its result."""

    async def call() -> T:
        async with AdminClient(namesrv_addr) as client:
            return await request(client)

    return asyncio.run(call())


topic_option = click.option("-t", "--topic", required=True, help="Name of the topic.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
broker_option = click.option("-b", "--brokerAddr", "address", type=ADDRESS, help="Address of one broker, host:port.")
cluster_option = click.option("-c", "--clusterName", "cluster", help="Name of a cluster, for all its masters.")
interval_option = click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0, min_open=True),
    help="Repeat after this many seconds, until interrupted.",
)
begin_option = click.option("-b", "--beginTimestamp", "--since", "begin_ms", type=TIME, help=SINCE_HELP)
end_option = click.option(
    "-e", "--endTimestamp", "--until", "end_ms", type=TIME, help="Only messages stored at this time or earlier."
)


def confirm(yes: bool, what: str) -> None:
    """Ask before a destructive change; the command is aborted if the answer is no, or if there is no terminal."""
    if not yes:
        click.confirm(f"{what}?", abort=True, err=True)


async def targets(client: AdminClient, address: str | None, cluster: str | None) -> list[str]:
    """Return the address given by -b, or the masters of the cluster given by -c; exactly one must be set."""
    if cluster is not None and address is None:
        return list((await client.cluster.masters(cluster)).values())
    assert address is not None
    return [address]


def one_of(address: str | None, cluster: str | None) -> None:
    """Raise UsageError unless exactly one of -b and -c is given."""
    if (address is None) == (cluster is None):
        raise click.UsageError("name either a broker with -b or a cluster with -c")


def rounds(interval_s: float | None) -> Iterator[None]:
    """Yield once, or with an interval repeatedly until the user interrupts."""
    yield
    while interval_s is not None:
        time.sleep(interval_s)
        yield


def no_such_queue(queue: MessageQueue, queues: Iterable[MessageQueue]) -> ConfigError:
    """Return the error for a queue that is not among `queues`, the queues of its topic."""
    known = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in sorted(queues))
    return ConfigError(f"topic {queue.topic} has no queue {queue.broker_name}:{queue.queue_id}; it has {known}")
