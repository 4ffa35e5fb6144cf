"""High availability: the roles of brokers, promotion, planned switchover, demotion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import Flag, Option, Result, command
from rucola.domain.role import HaStatus
from rucola.presentation import Table, optional, time_text, whole

Broker = Annotated[str, Option("-b --brokerAddr", "Address of the broker.", format="address")]
Force = Annotated[bool, Flag("--force", "Do it even if messages would be lost.")]

_ROLE_COLUMNS = (
    "#Broker Name", whole("#BID"), whole("#Addr"), "#Role", "#Epoch", "#End", optional("#Since"),
)  # fmt: skip
_STATE_COLUMNS = (
    "#Broker Name", whole("#BID"), "#State", "#Last switch", "#Reason", "#Messages only here", "#Bytes only here",
)  # fmt: skip
_ELECTION_COLUMNS = (
    "#Broker Name", whole("#BID"), "#In-sync set", "#Missing", "#Running", "#etcd", "#Right s",
)  # fmt: skip
_SLAVE_COLUMNS = ("#Broker Name", whole("#Slave"), whole("#BID"), "#Lag bytes", "#Lag s", "#In sync")


@command("haStatus", is_repeatable=True)
async def ha_status(
    client: AdminClient,
    address: Annotated[
        str | None, Option("-b --brokerAddr", "Only the brokers with the name of this one.", format="address")
    ] = None,
) -> Result:
    """Show role, epoch, last switch and replication lag of all brokers.

    Also shows what would be lost with each master now. clusterList, as mqadmin, has only ids: 0 is the master.

    \b
    Examples:
      rucola admin haStatus
      rucola admin haStatus -b localhost:10911 --json
    """
    name = None if address is None else (await client.roles.status(address)).broker_name
    table = (await client.cluster.info()).broker_addr_table
    found = {one for data in table.values() if name in (None, data.broker_name) for one in data.broker_addrs.values()}
    addresses = sorted(found if address is None else found | {address})
    statuses, failures = await client.roles.statuses(addresses)
    errors = {one: str(error) for one, error in failures.items()}
    by_name = sorted(statuses.items(), key=lambda item: (item[1].broker_name, item[1].broker_id))
    newest = _newest_epochs(statuses)
    text: list[str | Table] = [
        Table(_ROLE_COLUMNS, [_role_row(one, status) for one, status in by_name]),
        "",
        Table(_STATE_COLUMNS, [_state_row(status, newest[status.broker_name]) for _, status in by_name]),
    ]
    if slaves := [_slave_row(status, number) for _, status in by_name for number in range(len(status.slaves))]:
        text += ["", Table(_SLAVE_COLUMNS, slaves)]
    if elections := [_election_row(status) for _, status in by_name if status.election is not None]:
        text += ["", Table(_ELECTION_COLUMNS, elections)]
    text += [
        f"{one}, messages only here: {status.unreplicated_reason}"
        for one, status in by_name
        if status.unreplicated_reason
    ]
    return Result({"brokers": statuses, "errors": errors}, text, [f"{one}: {error}" for one, error in errors.items()])


def _role_row(address: str, status: HaStatus) -> tuple[object, ...]:
    since = time_text(status.role_since_ms)
    return status.broker_name, status.broker_id, address, status.role, status.epoch, status.end, since


def _newest_epochs(statuses: Mapping[str, HaStatus]) -> dict[str, int]:
    """Return the newest epoch of a master of each name that any of its brokers knows."""
    newest: dict[str, int] = {}
    for status in statuses.values():
        known = (status.epoch, status.master_epoch, 0 if status.election is None else status.election.epoch)
        newest[status.broker_name] = max(newest.get(status.broker_name, 0), *known)
    return newest


def _state_row(status: HaStatus, newest_epoch: int) -> tuple[object, ...]:
    only_here: tuple[int | str, ...] = "", ""
    if status.role == "SLAVE":
        is_old = 0 < status.master_epoch < newest_epoch
        state = (
            f"in old epoch {status.master_epoch}" if is_old else "follows" if status.is_following else "does not follow"
        )
    else:
        state = "serves" if status.is_accepting else "fenced" if status.fenced_by else "refuses"
        only_here = _known(status.unreplicated_messages), _known(status.unreplicated_bytes)
    switched = time_text(status.switched_ms)
    return status.broker_name, status.broker_id, state, switched, status.switch_reason, *only_here


def _known(count: int | None) -> int | str:
    return "-" if count is None else count


def _election_row(status: HaStatus) -> tuple[object, ...]:
    election = status.election
    assert election is not None
    members = [" ".join(map(str, each)) or "none" for each in (election.in_sync, election.missing, election.members)]
    etcd = "away" if election.is_etcd_away else "answers"
    return status.broker_name, status.member_id, *members, etcd, election.right_seconds


def _slave_row(status: HaStatus, number: int) -> tuple[object, ...]:
    slave = status.slaves[number]
    broker_id = "" if slave.broker_id is None else slave.broker_id
    lag_s = "-" if slave.lag_seconds is None else f"{slave.lag_seconds:.1f}"
    in_sync = "" if slave.in_sync is None else "yes" if slave.in_sync else "no"
    return status.broker_name, slave.address, broker_id, slave.lag_bytes, lag_s, in_sync


@command("promote", confirm="make {address} master")
async def promote(client: AdminClient, address: Broker, force: Force = False) -> Result:
    """Make a slave the master of its name, after the master was lost.

    Refused if messages would be lost, with their number, unless --force is given. A master that runs is better replaced
    by `switchover`. The old master is refused when it returns, and follows after `demote`. In a group whose master is
    elected (etcdEndpoints) promote and demote are refused, and the error says what to do instead.

    \b
    Examples:
      rucola admin promote -b localhost:10921
      rucola admin promote -b localhost:10921 --force --yes
    """
    epoch = await client.roles.promote(address, force=force)
    return Result({"brokerAddr": address, "epoch": epoch}, [f"{address} is master in epoch {epoch}"])


@command("switchover", confirm="have the master hand over to {address}")
async def switchover(
    client: AdminClient,
    address: Broker,
    timeout_s: Annotated[
        float, Option("--timeout", "Seconds for the slave to get the rest of the log.", min=0.1, max=600)
    ] = 10,
) -> Result:
    """Have the master hand over to a slave, and follow it. No message is lost.

    The master accepts no messages for the moment that the slave needs to get the rest of the log and to become master.

    \b
    Examples:
      rucola admin switchover -b localhost:10921
    """
    epoch, pause_ms = await client.roles.switch_over(address, timeout_ms=round(timeout_s * 1000))
    text = f"{address} is master in epoch {epoch}; no messages were accepted for {pause_ms} ms"
    return Result({"brokerAddr": address, "epoch": epoch, "pauseMs": pause_ms}, [text])


@command("safeToStop")
async def safe_to_stop(client: AdminClient, address: Broker) -> Result:
    """Tell whether a broker can be stopped now without a gap, for rolling restarts.

    Exit code 0 if so, else 1, with the reasons: it is the master, or no other slave has the messages, or another broker
    of its name is missing or catches up.

    \b
    Examples:
      rucola admin safeToStop -b localhost:10911 && systemctl restart rucola-broker
    """
    risks = await client.roles.stop_risks(address)
    text = [f"{address} should not be stopped now:", *risks] if risks else [f"{address} can be stopped"]
    value = {"brokerAddr": address, "isSafe": not risks, "reasons": risks}
    return Result(value, text, is_failure=bool(risks))


@command("demote", confirm="make {address} slave")
async def demote(client: AdminClient, address: Broker, force: Force = False) -> Result:
    """Make a broker follow the master of its name.

    The broker is an old master, or a slave whose master has lost messages. What only its log has is set aside, where
    `rucola store grep` reads it. That is refused, with the number of the messages, unless --force is given.

    \b
    Examples:
      rucola admin demote -b localhost:10911 --force
    """
    await client.roles.demote(address, force=force)
    return Result({"brokerAddr": address}, [f"{address} is slave"])
