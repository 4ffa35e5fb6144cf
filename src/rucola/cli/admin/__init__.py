"""`rucola admin`: mqadmin's commands, by mqadmin's names and flags. Each asks an AdminClient and prints the answer.

One file a family: `messages`, `reading`, `sending`, `tracing`, `topics`, `groups`, `offsets`, `dead_letters`,
`cluster`, `cleaning`, `exporting`, `importing`, `monitoring`; what their commands have in common is in `command`. Which
of mqadmin's commands there are, and which not and why, stands in docs/mqadmin.md.

Answers to org.apache.rocketmq.tools.command of Apache RocketMQ 4.9.8. Deliberate differences: bodies are printed
instead of written to files in /tmp; a key query that was cut, or that a broker did not answer, says so on stderr, and
ends with exit code 1 in the second case; what destroys asks first, unless told `--yes`; what cannot be done ends with
one line on stderr and exit code 1, where mqadmin prints a stack trace and ends with 0.
"""

from rucola.cli.admin import (
    cleanup,
    cluster,
    dead_letters,
    export,
    groups,
    imports,
    messages,
    monitor,
    offsets,
    queue_contents,
    send,
    topics,
    trace,
)
from rucola.cli.admin.command import admin

__all__ = [
    "admin",
    "cleanup",
    "cluster",
    "dead_letters",
    "export",
    "groups",
    "imports",
    "messages",
    "monitor",
    "offsets",
    "queue_contents",
    "send",
    "topics",
    "trace",
]
