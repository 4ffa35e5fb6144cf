"""Doctor: findings about messages that no consumer gets, and what to do."""

from __future__ import annotations

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Result, command
from rucola.domain.diagnosis import Finding
from rucola.presentation import Table, whole

ADVICE = {
    "QUEUE_NOT_READ": "give the topic the queue back: updateTopic -r, or updateSubGroup -q for a retry topic",
    "TOPIC_MISSING": "create the topic if its messages are needed; else they leave with the log",
    "FEWER_READ_QUEUES": "updateTopic with -r at least as great as -w",
    "FEWER_RETRY_QUEUES": "updateTopic of the %RETRY% topic with -r and -w of the group's retryQueueNums",
    "NO_RETRY_QUEUE": "updateSubGroup -q 1; -r 0 sends failures to the dead letter queue at once",
    "TRANSACTIONS_DISCARDED": "printMsg -t TRANS_CHECK_MAX_TIME_TOPIC; resumeCheckHalfMessage -i opens one again",
    "NOT_DIAGNOSED": "a broker of Apache's, or of another version: its queues that no route shows are not known",
}
"""What an operator does, by the reason of a finding."""


def _fields(finding: Finding) -> str:
    return " ".join(f"{name}={value}" for name, value in finding.fields.items() if name != "brokerName")


def warning(finding: Finding) -> str:
    """Describe a finding, after a change that may have caused it."""
    return f"warning: {finding.reason} {finding.subject}: {_fields(finding)}; {ADVICE.get(finding.reason, '')}"


@command("doctor")
async def doctor(client: AdminClient) -> Result:
    """Look for states in which messages wait and no consumer gets them.

    Checks every master: queues that no route shows, topics with fewer queues to read than to write, groups whose
    retries have no queue, discarded transactions. The exit code is 1 if anything is found.

    \b
    Examples:
      rucola admin doctor
      rucola admin doctor --json
    """
    found = await client.doctor.check()
    columns = "#Broker Name", whole("#Reason"), whole("#Subject"), "#Fields", "#Advice"
    rows = [
        (one.fields.get("brokerName", ""), one.reason, one.subject, _fields(one), ADVICE.get(one.reason, ""))
        for one in found
    ]
    return Result({"findings": found}, [Table(columns, rows) if found else "nothing found"], is_failure=bool(found))
