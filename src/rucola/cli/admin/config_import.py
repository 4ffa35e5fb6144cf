"""Import of topic and group settings from a JSON array, as in RocketMQ 5, or from a document of `exportMetadata`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from rucola.admin import AdminClient, SubscriptionGroupConfig, TopicConfig
from rucola.admin.commands import Target
from rucola.cli.admin.command import call_admin, command, target_options
from rucola.cli.option_types import PathType
from rucola.cli.output import print_json
from rucola.errors import ConfigError

T = TypeVar("T")

file_option = click.option(
    "-f", "--filename", "path", type=PathType(exists=True, dir_okay=False), required=True,
    help="JSON array of settings, or output of exportMetadata.",
)  # fmt: skip


def _read(path: Path, kind: type[T], table: str) -> list[T]:
    """Parse the settings in a file; ConfigError if it is malformed."""
    try:
        document: Any = msgspec.json.decode(path.read_bytes())
        if isinstance(document, dict):
            document = list(document[table].values())
        return msgspec.convert(document, list[kind])  # type: ignore[valid-type]
    except KeyError:
        raise ConfigError(f"{path} has no {table}") from None
    except (OSError, AttributeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a list of such settings: {error}") from None


def _import(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    wanted: list[T],
    name_of: Callable[[T], str],
    put: Callable[[AdminClient], Callable[[str, T], Awaitable[None]]],
) -> None:
    async def request(client: AdminClient) -> list[str]:
        addresses = await target.masters(client)
        for one in addresses:
            for config in wanted:
                await put(client)(one, config)
        return addresses

    addresses = call_admin(namesrv_addr, request)
    names = [name_of(config) for config in wanted]
    if as_json:
        print_json({"brokerAddrs": addresses, "names": names})
        return
    for one in addresses:
        click.echo(f"submit batch of {len(names)} to {one} success: {', '.join(names)}")


@command("updateTopicList")
@target_options
@file_option
def update_topic_list(namesrv_addr: str, as_json: bool, target: Target, path: Path) -> None:
    """Create or change the topics of a file on a broker (-b) or cluster (-c).

    \b
    Examples:
      rucola admin updateTopicList -c DefaultCluster -f exported/topic.json
    """
    wanted = _read(path, TopicConfig, "topicConfigTable")
    _import(
        namesrv_addr, as_json, target, wanted,
        lambda config: config.topic_name, lambda client: client.topics.create_or_update,
    )  # fmt: skip


@command("updateSubGroupList")
@target_options
@file_option
def update_sub_group_list(namesrv_addr: str, as_json: bool, target: Target, path: Path) -> None:
    """Create or change a file's consumer groups on a broker (-b) or cluster (-c).

    \b
    Examples:
      rucola admin updateSubGroupList -c DefaultCluster -f exported/subscriptionGroup.json
    """
    wanted = _read(path, SubscriptionGroupConfig, "subscriptionGroupTable")
    _import(
        namesrv_addr, as_json, target, wanted,
        lambda config: config.group_name, lambda client: client.groups.create_or_update,
    )  # fmt: skip
