"""`rucola tls`: certificates to try TLS, and for tests."""

from __future__ import annotations

from pathlib import Path

import click

from rucola.cli.extras import require_extra
from rucola.cli.option_types import PathType
from rucola.cli.suggestions import SuggestingGroup

DAYS = 397
"""Validity of a certificate; browsers accept no longer one."""

directory_argument = click.argument("directory", type=PathType(file_okay=False))
hosts_argument = click.argument("hosts", nargs=-1)
days_option = click.option(
    "--days", type=click.IntRange(1, 3650), default=DAYS, show_default=True, help="Validity of the certificates."
)


@click.group(cls=SuggestingGroup)
def tls() -> None:
    """Make certificates for a first try of TLS, and for tests.

    In production use the certificates of your organisation: see docs/security.md. Needs the extra `security`.
    """


@tls.command()
@directory_argument
@hosts_argument
@days_option
def init(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a certificate authority, and certificates for servers and clients, in DIRECTORY.

    The server's certificate is for localhost, the name of this machine and HOSTS, names or addresses: clients connect
    to the addresses of name servers and to the brokerIP1 of brokers. The settings in server.properties and
    client.properties are for Rucola and Apache RocketMQ alike.

    \b
    Examples:
      rucola tls init certificates
      rucola tls init certificates broker-a.example.com 10.0.0.7
    """
    with require_extra("security"):
        from rucola.cli.certificates import CertificateDirectory
    names = CertificateDirectory(directory).create(hosts, days)
    click.echo(f"{directory}: an authority, and certificates for {', '.join(names)}, valid for {days} days")
    click.echo(f"servers: rucola standalone --store data -c {directory}/server.properties")
    click.echo(f"clients: export ROCKETMQ_TLS_CONFIG_FILE={directory}/client.properties")


@tls.command()
@directory_argument
@hosts_argument
@days_option
def renew(directory: Path, hosts: tuple[str, ...], days: int) -> None:
    """Replace the certificates in DIRECTORY by new ones of the same authority.

    Running servers use them for new connections. HOSTS are added to the names in the server's certificate.

    \b
    Examples:
      rucola tls renew certificates
      rucola tls renew certificates broker-b.example.com
    """
    with require_extra("security"):
        from rucola.cli.certificates import CertificateDirectory
    names = CertificateDirectory(directory).renew(hosts, days)
    click.echo(f"{directory}: new certificates for {', '.join(names)}, valid for {days} days")
