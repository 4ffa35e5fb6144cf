"""`rucola admin`: the commands of mqadmin, with its names and flags.

docs/mqadmin.md lists the commands that are implemented, and why others are not. Corresponds to
org.apache.rocketmq.tools.command of Apache RocketMQ 4.9.8. Deliberate differences:

- Message bodies are printed instead of written to files in /tmp.
- A key query whose result is cut or incomplete prints a line on stderr; if a broker did not answer, the exit code is 1.
- Destructive commands ask for confirmation unless `--yes` is given.
- A failed command prints one line on stderr and exits with code 1; mqadmin prints a stack trace and exits with 0.
"""

from rucola.admin.commands import CATALOGUE
from rucola.cli.admin import dead_letters  # adds exportDlq to the catalogue
from rucola.cli.admin.command import add_to_cli, admin

for one in CATALOGUE.values():
    add_to_cli(one)

__all__ = ["admin", "dead_letters"]
