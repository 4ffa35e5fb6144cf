"""Lanes: the leases by which relays share the stubs, one relay per lane at a time.

A sharding key belongs to one lane, so messages of one key are never in the hands of two relays, whatever the database's
locks can do. Relays need no configuration: each writes itself into the table `relay`, counts those that are alive, and
takes or gives up lanes until it has its share.

A relay that stops without a word loses its lanes when its lease ends. One that was only paused cannot do harm when it
resumes: a claim checks the lane's lease in the same statement, and results are recorded only over the own claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Update, delete, func, or_, select, update

from rucola.reliable.schema import LANES, Tables, now_ms


def renew(connection: Connection, tables: Tables, owner: str, lease_ms: int) -> frozenset[int]:
    """Renew the leases of a relay between two batches, move toward its fair share, and return its lanes."""
    lane, relay = tables.lane, tables.relay
    until = now_ms() + lease_ms
    if not connection.execute(update(relay).where(relay.c.owner == owner).values(seen_until=until)).rowcount:
        connection.execute(relay.insert().values(owner=owner, seen_until=until))
        connection.execute(delete(relay).where(relay.c.seen_until <= now_ms()))
    alive = select(func.count()).select_from(relay).where(relay.c.seen_until > now_ms()).scalar_subquery()
    is_over = lane.c.lease_until <= now_ms()
    rows = connection.execute(
        select(lane.c.lane, lane.c.owner, is_over.label("is_over"), alive.label("alive")).order_by(lane.c.lane)
    ).all()
    own = [row.lane for row in rows if row.owner == owner]
    free = [row.lane for row in rows if row.owner != owner and (row.owner is None or row.is_over)]
    share = -(-LANES // rows[0].alive)
    expected = own[:share] + free[: max(0, share - len(own))]
    if own[share:]:
        connection.execute(_release(tables, owner, own[share:]))
    # Checked again under the rows' locks: another relay may have been faster.
    is_mine_or_free = or_(lane.c.owner == owner, lane.c.owner.is_(None), is_over)
    renewal = update(lane).where(lane.c.lane.in_(expected), is_mine_or_free).values(owner=owner, lease_until=until)
    if connection.execute(renewal).rowcount == len(expected):
        return frozenset(expected)
    return frozenset(connection.scalars(select(lane.c.lane).where(lane.c.owner == owner)))


def leave(connection: Connection, tables: Tables, owner: str) -> None:
    """Give up all lanes, so that other relays go on at once."""
    connection.execute(_release(tables, owner, range(LANES)))
    connection.execute(delete(tables.relay).where(tables.relay.c.owner == owner))


def _release(tables: Tables, owner: str, lanes: Iterable[int]) -> Update:
    lane = tables.lane
    return update(lane).where(lane.c.owner == owner, lane.c.lane.in_(list(lanes))).values(owner=None, lease_until=0)
