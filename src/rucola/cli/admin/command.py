"""Command group of `rucola admin`, and shared options, confirmation prompts and time formats."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from rucola.acl.credentials import ACCESS_KEY_VARIABLE, CREDENTIALS_FILE_VARIABLE, SECRET_KEY_VARIABLE
from rucola.admin import AdminClient
from rucola.admin.commands.command import InvalidArguments
from rucola.cli.option_types import ADDRESS, SINCE_HELP, TIME, PathType, namesrv_option
from rucola.cli.output import wide_option
from rucola.cli.suggestions import SuggestingGroup
from rucola.name_server_addresses import DEFAULT_NAMESRV

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class AdminCommands(SuggestingGroup):
    subjects = {
        "Topics": (
            "topicList", "topicStatus", "topicRoute", "topicClusterList", "updateTopic", "updateTopicPerm",
            "updateTopicList", "deleteTopic", "updateOrderConf", "allocateMQ", "queryCq",
        ),
        "Messages": (
            "queryMsgByKey", "queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg",
            "printMsgByQueue", "consumeMessage", "sendMessage", "resumeCheckHalfMessage",
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
        "Replication and failover": ("haStatus", "promote", "switchover", "demote", "safeToStop"),
        "Access control": (
            "updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr", "clusterAclConfigVersion", "createUser",
            "updateUser", "deleteUser", "getUser", "listUser", "createAcl", "updateAcl", "deleteAcl", "getAcl",
            "listAcl",
        ),
        "Measuring and monitoring": ("clusterRT", "checkMsgSendRT", "sendMsgStatus", "startMonitoring", "doctor"),
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
      rucola admin topicList --credentials tools.yml       a cluster with access control
      ROCKETMQ_TLS_CONFIG_FILE=client.properties rucola admin clusterList      by TLS, see docs/security.md
    """


def click_command(name: str) -> Callable[[F], click.Command]:
    """Register a command of `admin`, with the options that all commands have."""

    def decorate(function: F) -> click.Command:
        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            try:
                return function(*arguments, **options)
            except InvalidArguments as error:
                raise click.UsageError(str(error)) from None

        # click shows the option that was added last first: help texts begin with -n and --json.
        with_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(checked)
        with_namesrv = namesrv_option("namesrv_addr", "Name servers.", default=DEFAULT_NAMESRV)(with_json)
        with_credentials = click.option(
            "--credentials", type=PathType(dir_okay=False), envvar=CREDENTIALS_FILE_VARIABLE,
            show_envvar=True, expose_value=False, callback=_use_credentials,
            help="File with accessKey and secretKey, like tools.yml.",
        )(with_namesrv)  # fmt: skip
        return admin.command(name)(wide_option(with_credentials))

    return decorate


def _use_credentials(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    before = dict(os.environ)
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
        os.environ.pop(name, None)
    os.environ[CREDENTIALS_FILE_VARIABLE] = str(path)

    def restore() -> None:
        os.environ.clear()
        os.environ.update(before)

    ctx.call_on_close(restore)


def call_admin(namesrv_addr: str, request: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Call `request` with an AdminClient that is open during the call."""

    async def call() -> T:
        async with AdminClient(namesrv_addr) as client:
            return await request(client)

    return asyncio.run(call())


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
    """Ask before a destructive change; abort if the answer is no, or if there is no terminal."""
    if not yes:
        click.confirm(f"{what}?", abort=True, err=True)


def rounds(interval_s: float | None) -> Iterator[None]:
    """Yield once, or with an interval until the user interrupts."""
    yield
    while interval_s is not None:
        time.sleep(interval_s)
        yield
