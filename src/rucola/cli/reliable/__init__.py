"""`rucola reliable`: the tables of business reliability, the relay as a service, and what operators do with messages.

`service` holds init, migrate, relay and purge; `messages` the commands about messages; `command` what they share.
"""

from __future__ import annotations

import click

from rucola.cli.reliable.messages import confirm, list_, resend, show, stats, void
from rucola.cli.reliable.service import init, migrate, purge, relay


@click.group()
def reliable() -> None:
    """Run and look after an outbox: messages that take effect once in a database.

    The database is an URL of SQLAlchemy, in --database or RUCOLA_DATABASE: sqlite:///FILE,
    postgresql+psycopg://USER:PASSWORD@HOST/NAME, mysql+pymysql://USER:PASSWORD@HOST/NAME (MariaDB).

    \b
    States of a message:
      NEW        not sent yet, or no send was answered
      SENT       stored by a broker, not confirmed by all groups it awaits
      CONFIRMED  settled
      MANUAL     sent too often without success: resend, confirm or void it
      STUCK      received or waiting for too long, unconfirmed
      DEAD       in a group's dead letter queue
      VOID       an operator voided it
    """


for command in (init, migrate, relay, list_, show, resend, confirm, void, stats, purge):
    reliable.add_command(command)
