"""Removal of a broker: wait until nothing is left on it; move topics and groups to another one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import BrokerName, ConsumerGroup, Option, Result, Topic, command
from rucola.admin.drain import CLIENT_ROUTE_S, DrainState
from rucola.presentation import duration_text, first_of, time_text

SHOWN: Final = 5
"""Backlogs in one line."""

FromBroker = Annotated[str, Option("-f --from", "Broker name that has it.")]
ToBroker = Annotated[str, Option("-d --to", "Broker name that gets it.")]
Interval = Annotated[float, Option("-i --interval", "Seconds between two looks.", min=0.01)]
RouteTime = Annotated[
    float, Option("-r --routeTime", "Seconds for which clients use an old route: their pollNameServerInterval.", min=0)
]
Timeout = Annotated[float | None, Option("--timeout", "Give up after so many seconds, with exit code 1.", min=0)]


def _left(state: DrainState) -> str:
    """Describe what waits, for a line."""
    if state.error:
        return f"no answer, retrying: {state.error}"
    pending, parts = state.pending, list[str]()
    for one in pending.backlogs[:SHOWN]:
        parts.append(f"group {one.group} has {one.messages} of {one.topic}" + ("" if one.clients else ", no client"))
    if len(pending.backlogs) > SHOWN:
        parts.append(f"and {len(pending.backlogs) - SHOWN} more backlogs, {pending.backlog_total} messages in all")
    for name, due in (("delayed", pending.delayed), ("timed", pending.timed), ("open transactions", pending.half)):
        if due.total:
            parts.append(f"{due.total} {name}, the last due at {time_text(due.last_due_ms)}")
    if pending.dead_letter_total:
        groups = first_of(list(pending.dead_letters), SHOWN)
        parts.append(f"{pending.dead_letter_total} dead letters of {groups}: redriveDlq, or consume them")
    return "; ".join(parts) or "nothing waits"


def _end(state: DrainState) -> str:
    if state.remaining_s is not None:
        return f"about {duration_text(state.remaining_s * 1000)} more"
    return "no end in sight: a group consumes nothing, or somebody must act"


async def _effect(client: AdminClient, broker_name: str, **given: object) -> str:
    only = await client.drain.only_on(broker_name)
    lost = f"; no other broker has {first_of(only, SHOWN)}, whose sends fail (moveTopic first)" if only else ""
    return f"stop all sends to broker {broker_name} and wait until nothing is left on it{lost}"


@command("drain", confirm=_effect, waits=True)
async def drain(
    client: AdminClient,
    broker_name: BrokerName,
    interval_s: Interval = 5.0,
    route_s: RouteTime = CLIENT_ROUTE_S,
    timeout_s: Timeout = None,
) -> AsyncIterator[Result]:
    """Stop sends to a broker, and wait until nothing is left on it that somebody needs.

    Ends with exit code 0 when no group has a backlog there, no message is delayed or timed, no transaction is open and
    no dead letter is unread; then the broker can be removed. Messages that all groups have consumed stay in its store,
    and so do those of topics that no group consumes. Prints what is left, and how long that may take. Consumers must
    run. Ctrl-C ends the wait alone: call it again to go on, or addWritePerm to permit sends again.

    \b
    Examples:
      rucola admin drain -b broker-a --yes
      rucola admin drain -b broker-a --yes --timeout 3600 --json
    """
    undo = "addWritePerm", {"broker_name": broker_name}
    begin_s, last, said_s = time.monotonic(), "", 0.0
    async for state in client.drain.drain(broker_name, interval_s=interval_s, route_s=route_s):
        now_s = time.monotonic()
        if not said_s:
            stopped = [
                f"sends to {broker_name} are stopped. Ctrl-C ends the wait, and the same command goes on; "
                f"`rucola admin addWritePerm -b {broker_name}` permits sends again"
            ]
            said_s = now_s
            yield Result({"brokerName": broker_name, "event": "STOPPED"}, stopped, undo=undo)
        value = {
            "brokerName": broker_name, "event": "DRAINED" if state.is_drained else "WAITING", "error": state.error,
            "pending": state.pending, "remainingSeconds": state.remaining_s, "settlingSeconds": state.settling_s,
        }  # fmt: skip
        if state.is_drained:
            unread = state.pending.unread_total
            lines = [f"{broker_name} is drained: nothing is left on it that somebody needs. It can be stopped."]
            if unread:
                lines.append(f"{unread} messages of topics that no group consumes stay in its store")
            yield Result(value, lines)
            return
        if timeout_s is not None and now_s >= begin_s + timeout_s:
            lines = [f"{broker_name} is not drained after {duration_text(timeout_s * 1000)}: {_left(state)}"]
            yield Result(value | {"event": "TIMEOUT"}, lines, is_failure=True)
            return
        left = _left(state)
        if left != last or now_s >= said_s + 60:
            last, said_s = left, now_s
            yield Result(value, [f"{time_text(time.time_ns() // 1_000_000)} {left}; {_end(state)}"])


@command(
    "moveTopic",
    confirm="stop sends of {topic} to broker {from_broker}, and give them to {to_broker} when all groups have consumed",
    waits=True,
)
async def move_topic(
    client: AdminClient,
    topic: Topic,
    from_broker: FromBroker,
    to_broker: ToBroker,
    interval_s: Interval = 5.0,
    route_s: RouteTime = CLIENT_ROUTE_S,
    timeout_s: Timeout = None,
) -> AsyncIterator[Result]:
    """Let another broker accept the messages of a topic, in order.

    The other broker accepts messages at once, in as many queues, and gives them to no consumer before each group has
    consumed what the first one has: so the messages of one queue number stay in order. Groups begin there at the first
    message, with offsets of their own. Producers that choose a queue are refused (NO_PERMISSION) until their next
    route, within 30 seconds; others go on. Not moved: messages, which are consumed where they are; delayed, timed and
    half messages of the topic, which arrive later in the old queues; offsets that broadcasting members keep themselves.
    Ctrl-C ends the wait, and the same command goes on.

    \b
    Examples:
      rucola admin moveTopic -t Orders --from broker-a --to broker-b --yes
    """
    begin_s, last = time.monotonic(), -1
    async for waiting in client.drain.move_topic(topic, from_broker, to_broker, interval_s=interval_s, route_s=route_s):
        value = {"topic": topic, "from": from_broker, "to": to_broker, "waiting": waiting}
        if timeout_s is not None and time.monotonic() >= begin_s + timeout_s:
            lines = [f"{topic} is not moved: {waiting} messages on {from_broker} are not consumed"]
            yield Result(value | {"event": "TIMEOUT"}, lines, is_failure=True)
            return
        if waiting != last:
            last = waiting
            yield Result(value | {"event": "WAITING"}, [f"{waiting} messages on {from_broker} are not consumed yet"])
    lines = [
        f"{topic} is on {to_broker} now, and {from_broker} accepts none. Its delayed, timed and half messages on "
        f"{from_broker} arrive there; `rucola admin drain -b {from_broker}` waits for them"
    ]
    yield Result(value | {"event": "MOVED"}, lines)


@command("moveGroup", confirm="move settings and retry topic of group {group} from {from_broker} to {to_broker}")
async def move_group(client: AdminClient, group: ConsumerGroup, from_broker: FromBroker, to_broker: ToBroker) -> Result:
    """Move a group's settings and retry topic to another broker, after its topics.

    The group is deleted on the first broker if nothing waits for it there: otherwise the exit code is 1, and another
    call goes on. While its clients are connected there it stays, with exit code 0, since their heartbeats would create
    it again. Not moved: its retries and dead letters, which are consumed or re-driven where they are, its offsets,
    which belong to the queues of the first broker, and its request modes (setConsumeMode).

    \b
    Examples:
      rucola admin moveGroup -g billing --from broker-a --to broker-b --yes
    """
    moved = await client.drain.move_group(group, from_broker, to_broker)
    value = {
        "group": group, "from": from_broker, "to": to_broker, "backlogs": moved.backlogs, "delayed": moved.delayed,
        "clients": moved.clients,
    }  # fmt: skip
    lines = [f"{to_broker} has group {group}"]
    if moved.is_complete and moved.clients:
        lines.append(f"nothing waits on {from_broker}, where it stays while its {moved.clients} clients are connected")
    elif moved.is_complete:
        lines.append(f"it is deleted on {from_broker}")
    else:
        lines += [f"{one.messages} messages of {one.topic} wait on {from_broker}" for one in moved.backlogs]
        lines += [f"{moved.delayed} delayed messages wait on {from_broker}, maybe retries of it"] * bool(moved.delayed)
        if moved.waiting and not moved.backlogs:
            lines.append(f"{from_broker} has more backlogs than it lists: wait until there are fewer")
    return Result(value, lines, is_failure=not moved.is_complete)
