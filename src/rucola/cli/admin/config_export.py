"""Export of settings and metrics of a cluster as JSON documents."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from rucola.admin import AdminClient
from rucola.admin.commands import Target
from rucola.cli.admin.command import call_admin, command, target_options
from rucola.cli.option_types import PathType
from rucola.cli.output import print_json
from rucola.errors import ConfigError
from rucola.files import replace_file

path_option = click.option(
    "-f", "--filePath", "directory", type=PathType(file_okay=False),
    help="Directory to write to; by default the document is printed.",
)  # fmt: skip
whole_cluster_option = click.option("-c", "--clusterName", "cluster", required=True, help="Name of the cluster.")


def _export(document: dict[str, Any], directory: Path | None, name: str, as_json: bool) -> None:
    if directory is None:
        print_json(document)
        return
    path = directory / name
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    if as_json:
        print_json({"path": str(path)})
    else:
        click.echo(f"export {path} success")


@command("exportMetadata")
@target_options
@path_option
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Export only topics.")
@click.option("-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Export only groups.")
@click.option("-s", "--specialTopic", "with_special", is_flag=True, help="Include retry and dead letter topics.")
def export_metadata(
    namesrv_addr: str,
    as_json: bool,
    target: Target,
    directory: Path | None,
    only_topics: bool,
    only_groups: bool,
    with_special: bool,
) -> None:
    """Export the topics and groups of one broker (-b) or of a cluster (-c).

    \b
    Examples:
      rucola admin exportMetadata -c DefaultCluster
      rucola admin exportMetadata -b localhost:10911 -t -f exported
    """
    if only_topics and only_groups:
        raise click.UsageError("-t and -g exclude each other; without them, both are exported")

    async def request(client: AdminClient) -> dict[str, Any]:
        addresses = await target.masters(client)
        topics, groups = await client.export.metadata(addresses, with_special=with_special)
        document: dict[str, Any] = {"exportTime": time.time_ns() // 1_000_000}
        if not only_groups:
            document["topicConfigTable"] = topics
        if not only_topics:
            document["subscriptionGroupTable"] = groups
        return document

    name = "topic.json" if only_topics else "subscriptionGroup.json" if only_groups else "metadata.json"
    _export(call_admin(namesrv_addr, request), directory, name, as_json)


@command("exportConfigs")
@whole_cluster_option
@path_option
def export_configs(namesrv_addr: str, as_json: bool, cluster: str, directory: Path | None) -> None:
    """Export the number of servers of a cluster, and settings of its masters.

    \b
    Examples:
      rucola admin exportConfigs -c DefaultCluster -f exported
    """
    _export(call_admin(namesrv_addr, lambda client: client.export.configs(cluster)), directory, "configs.json", as_json)


@command("exportMetrics")
@whole_cluster_option
@path_option
def export_metrics(namesrv_addr: str, as_json: bool, cluster: str, directory: Path | None) -> None:
    """Export disk usage, rates and client numbers of the masters of a cluster.

    \b
    Examples:
      rucola admin exportMetrics -c DefaultCluster -f exported
    """
    _export(call_admin(namesrv_addr, lambda client: client.export.metrics(cluster)), directory, "metrics.json", as_json)
