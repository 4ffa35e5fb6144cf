"""What the commands of `rucola admin` have in common: the group, their options, asking, confirming, reading times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from rucola.admin import AdminClient, MessageQueue
from rucola.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

TIME_FORMAT = "now | milliseconds since 1970 | yyyy-MM-dd#HH:mm:ss:SSS"


@click.group()
def admin() -> None:
    """Ask and change a running cluster, with mqadmin's names and flags.

    \b
    Examples:
      rucola admin clusterList -n localhost:9876
      rucola admin queryMsgByKey -n localhost:9876 -t Orders -k 4711
      NAMESRV_ADDR=localhost:9876 rucola admin topicStatus -t Orders --json
    """


def command(name: str) -> Callable[[F], click.Command]:
    """A command of `admin` with the options that all of them have."""

    def decorate(function: F) -> click.Command:
        with_json = click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")(function)
        with_namesrv = click.option(
            "-n", "--namesrvAddr", "namesrv_addr", envvar="NAMESRV_ADDR", required=True, show_envvar=True,
            help="Name servers, host:port;host:port.",
        )(with_json)  # fmt: skip
        return admin.command(name)(with_namesrv)

    return decorate


def ask(namesrv_addr: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """The answer to one question, on a connection that lives as long as the question."""

    async def asking() -> T:
        async with AdminClient(namesrv_addr) as client:
            return await question(client)

    return asyncio.run(asking())


topic_option = click.option("-t", "--topic", required=True, help="Topic name.")
yes_option = click.option("--yes", is_flag=True, help="Do it without asking first.")
broker_option = click.option("-b", "--brokerAddr", "address", help="One broker, host:port.")
cluster_option = click.option("-c", "--clusterName", "cluster", help="Every master of this cluster.")
interval_option = click.option(
    "-i", "--interval", type=click.FloatRange(0, min_open=True), help="Again after so many seconds, until interrupted."
)
begin_option = click.option("-b", "--beginTimestamp", "--since", "begin", help=f"Stored then or later: {TIME_FORMAT}.")
end_option = click.option("-e", "--endTimestamp", "--until", "end", help=f"Stored then or before: {TIME_FORMAT}.")


def confirm(yes: bool, what: str) -> None:
    """Ask before something is destroyed; the command ends here where the answer is no, or nobody can answer."""
    if not yes:
        click.confirm(f"{what}?", abort=True, err=True)


async def targets(client: AdminClient, address: str | None, cluster: str | None) -> list[str]:
    """The brokers that -b or -c name, of which exactly one must be given."""
    if cluster is not None and address is None:
        return list((await client.cluster.masters(cluster)).values())
    assert address is not None
    return [address]


def one_of(address: str | None, cluster: str | None) -> None:
    """UsageError unless exactly one of -b and -c is given."""
    if (address is None) == (cluster is None):
        raise click.UsageError("name either a broker with -b or a cluster with -c")


def rounds(interval_s: float | None) -> Iterator[None]:
    """One round, or with an interval one after the other until the user interrupts."""
    yield
    while interval_s is not None:
        time.sleep(interval_s)
        yield


def no_such_queue(queue: MessageQueue, queues: Iterable[MessageQueue]) -> ConfigError:
    """The error for a queue that is none of these, which the topic has."""
    known = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in sorted(queues))
    return ConfigError(f"topic {queue.topic} has no queue {queue.broker_name}:{queue.queue_id}; it has {known}")


def time_of(text: str, option: str) -> int:
    """A point in time, in milliseconds since 1970, as operators write it. ConfigError for anything else."""
    text = text.strip()
    if text == "now":
        return time.time_ns() // 1_000_000
    if text.isascii() and text.isdigit():
        return int(text)
    moment, _, milliseconds = text.rpartition(":")
    try:
        if len(milliseconds) != 3:
            raise ValueError
        return int(time.mktime(time.strptime(moment, "%Y-%m-%d#%H:%M:%S"))) * 1000 + int(milliseconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text}: no time; write {TIME_FORMAT}") from None


def times_of(begin: str | None, end: str | None, options: str = "-b -e") -> tuple[int | None, int | None]:
    """Two points in time as `time_of` reads them, None for what is not given; `options` are their names.

    ConfigError where the first comes after the second.
    """
    begin_name, end_name = options.split()
    begin_ms = None if begin is None else time_of(begin, begin_name)
    end_ms = None if end is None else time_of(end, end_name)
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise ConfigError(f"{begin_name} {begin} is after {end_name} {end}: nothing lies between")
    return begin_ms, end_ms
