"""Settings of topics, groups and brokers as JSON documents: export and import."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Flag, InvalidArguments, Masters, Option, Result, Row, command
from rucola.admin.requests import gather_to_completion
from rucola.domain.group import SubscriptionGroupConfig
from rucola.domain.topic import TopicConfig
from rucola.errors import ConfigError
from rucola.files import replace_file
from rucola.presentation import first_of

T = TypeVar("T")

Directory = Annotated[
    Path | None,
    Option("-f --filePath", "Directory to write to; by default the document is printed.", format="directory"),
]
File = Annotated[Path, Option("-f --filename", "JSON array of settings, or output of exportMetadata.", format="file")]
Cluster = Annotated[str, Option("-c --clusterName", "Name of the cluster.")]


def _export(document: Row, directory: Path | None, name: str) -> Result:
    if directory is None:
        return Result(document)
    path = directory / name
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    return Result({"path": path}, [f"export {path} success"])


@command("exportMetadata")
async def export_metadata(
    client: AdminClient,
    target: Masters,
    directory: Directory = None,
    only_topics: Annotated[bool, Flag("-t --topic", "Export only topics.")] = False,
    only_groups: Annotated[bool, Flag("-g --subscriptionGroup", "Export only groups.")] = False,
    with_special: Annotated[bool, Flag("-s --specialTopic", "Include retry and dead letter topics.")] = False,
) -> Result:
    """Export the topics and groups of one broker (-b) or of a cluster (-c).

    \b
    Examples:
      rucola admin exportMetadata -c DefaultCluster
      rucola admin exportMetadata -b localhost:10911 -t -f exported
    """
    if only_topics and only_groups:
        raise InvalidArguments("-t and -g exclude each other; without them, both are exported")
    topics, groups = await client.export.metadata(await target.masters(client), with_special=with_special)
    document: Row = {"exportTime": time.time_ns() // 1_000_000}
    if not only_groups:
        document["topicConfigTable"] = topics
    if not only_topics:
        document["subscriptionGroupTable"] = groups
    name = "topic.json" if only_topics else "subscriptionGroup.json" if only_groups else "metadata.json"
    return _export(document, directory, name)


@command("exportConfigs")
async def export_configs(client: AdminClient, cluster: Cluster, directory: Directory = None) -> Result:
    """Export the number of servers of a cluster, and settings of its masters.

    \b
    Examples:
      rucola admin exportConfigs -c DefaultCluster -f exported
    """
    return _export(await client.export.configs(cluster), directory, "configs.json")


@command("exportMetrics")
async def export_metrics(client: AdminClient, cluster: Cluster, directory: Directory = None) -> Result:
    """Export disk usage, rates and client numbers of the masters of a cluster.

    \b
    Examples:
      rucola admin exportMetrics -c DefaultCluster -f exported
    """
    return _export(await client.export.metrics(cluster), directory, "metrics.json")


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


async def _put(
    addresses: list[str], configs: list[tuple[str, T]], put: Callable[[str, T], Coroutine[Any, Any, None]]
) -> Result:
    await gather_to_completion(put(one, config) for one in addresses for _, config in configs)
    names = [name for name, _ in configs]
    text = [f"submit batch of {len(names)} to {one} success: {first_of(names)}" for one in addresses]
    return Result({"brokerAddrs": addresses, "names": names}, text)


@command("updateTopicList", writes=True)
async def update_topic_list(client: AdminClient, target: Masters, path: File) -> Result:
    """Create or change the topics of a file on a broker (-b) or cluster (-c).

    \b
    Examples:
      rucola admin updateTopicList -c DefaultCluster -f exported/topic.json
    """
    configs = [(one.topic_name, one) for one in _read(path, TopicConfig, "topicConfigTable")]
    return await _put(await target.masters(client), configs, client.topics.create_or_update)


@command("updateSubGroupList", writes=True)
async def update_sub_group_list(client: AdminClient, target: Masters, path: File) -> Result:
    """Create or change a file's consumer groups on a broker (-b) or cluster (-c).

    \b
    Examples:
      rucola admin updateSubGroupList -c DefaultCluster -f exported/subscriptionGroup.json
    """
    configs = [(one.group_name, one) for one in _read(path, SubscriptionGroupConfig, "subscriptionGroupTable")]
    return await _put(await target.masters(client), configs, client.groups.create_or_update)
