"""`rucola conformance`: what a server of RocketMQ 5's gRPC protocol answers to a client."""

from __future__ import annotations

import asyncio

import click

from rucola.acl.credentials import default_credentials
from rucola.cli.admin.command import credentials_option
from rucola.cli.option_types import ADDRESS
from rucola.cli.output import print_json, print_table
from rucola.conformance.scenarios import Outcome, run
from rucola.http2.client import GrpcChannel
from rucola.remoting.client import host_and_port
from rucola.remoting.tls import ClientTls


@click.command()
@click.option("--endpoint", type=ADDRESS, required=True, help="Address of the server's gRPC port.")
@click.option("--topic", required=True, help="Topic to send to. Messages of types that it does not accept are skipped.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@credentials_option
def conformance(endpoint: str, topic: str, as_json: bool) -> None:
    """Do what clients of RocketMQ 5 do, and print which answers are not what they need.

    For any server of the protocol: a broker of Rucola, Apache's proxy, or another one. The topic must exist, unless the
    server creates topics, and gets a few messages. An account needs the rights to send to the topic, and to receive
    from it in any group. The file that ROCKETMQ_TLS_CONFIG_FILE names is for TLS. Takes some ten seconds. The exit code
    is 1 if a scenario failed.

    \b
    Examples:
      rucola conformance --endpoint localhost:8081 --topic Test
      rucola conformance --endpoint 10.0.0.7:8081 --topic Test --json
      rucola conformance --endpoint 10.0.0.7:8081 --topic Test --credentials tools.yml
    """
    outcomes = asyncio.run(_run(endpoint, topic))
    if as_json:
        print_json([outcome._asdict() for outcome in outcomes])
    else:
        print_table(Outcome._fields, outcomes)
    if any(outcome.result == "failed" for outcome in outcomes):
        raise SystemExit(1)


async def _run(endpoint: str, topic: str) -> list[Outcome]:
    tls = ClientTls.from_environment()
    channel = GrpcChannel(*host_and_port(endpoint), None if tls is None else tls.follow())
    try:
        return await run(channel, topic, default_credentials())
    finally:
        await channel.close()
