"""`rucola reliable`: outbox tables, relay service, and operations on single messages."""

from __future__ import annotations

import click

from rucola.cli.reliable.export import export
from rucola.cli.reliable.messages import confirm, list_, resend, stats, void
from rucola.cli.reliable.service import init, migrate, purge, relay
from rucola.cli.reliable.show import show
from rucola.cli.suggestions import SuggestingGroup


@click.group(cls=SuggestingGroup)
def reliable() -> None:
    """Operate an outbox: messages in a database that take effect exactly once.

    The database is an SQLAlchemy URL in --database or RUCOLA_DATABASE: sqlite:///FILE,
    postgresql+psycopg://USER:PASSWORD@HOST/NAME, mysql+pymysql://USER:PASSWORD@HOST/NAME (MariaDB).

    \b
    States of a message:
      NEW        not sent, or no send was acknowledged
      SENT       stored by a broker, not yet confirmed by all awaited groups
      CONFIRMED  complete
      MANUAL     unconfirmed after the maximum of sends: resend, confirm or void it
      STUCK      received or waiting for too long without confirmation
      DEAD       in the dead letter queue of a group
      VOID       voided by an operator
    """


for command in (init, migrate, relay, list_, show, resend, confirm, void, stats, purge, export):
    reliable.add_command(command)
