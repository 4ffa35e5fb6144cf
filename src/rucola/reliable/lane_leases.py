"""Lanes: leases by which relays share the stubs, one relay per lane at a time.

A sharding key belongs to one lane, so two relays never send messages of one key at the same time. Relays need no
configuration: each inserts itself into the table `relay`, counts the live ones, and acquires or releases lanes until it
holds its share. With 16 lanes and 3 relays, each holds at most 6.

A crashed relay loses its lanes when its lease ends. A paused relay does no harm when it resumes: a claim checks the
lane's lease in the same statement, and outcomes are recorded only for rows that the relay still owns.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Update, delete, func, or_, select, update

from rucola.reliable.database import idle_limit
from rucola.reliable.schema import LANES, Tables, now_ms


def renew(connection: Connection, tables: Tables, owner: str, lease_ms: int) -> frozenset[int]:
    """Renew the leases of a relay between two batches, adjust to its share and return its lanes.

    1. Extend the relay's own row; insert it if missing, and delete expired relays. 2. Read all lanes and the number of
    live relays; the share is lanes / relays, rounded up. 3. Release lanes above the share; renew the others and acquire
    free lanes up to the share. 4. If another relay was faster in step 3, return the lanes actually held.
    """
    lane, relay = tables.lane, tables.relay
    until = now_ms() + lease_ms
    # 1. A missing row means that this relay is new or was considered dead.
    if not connection.execute(update(relay).where(relay.c.owner == owner).values(seen_until=until)).rowcount:
        connection.execute(relay.insert().values(owner=owner, seen_until=until))
        connection.execute(delete(relay).where(relay.c.seen_until <= now_ms()))
    # 2.
    alive = select(func.count()).select_from(relay).where(relay.c.seen_until > now_ms()).scalar_subquery()
    is_over = lane.c.lease_until <= now_ms()
    columns = lane.c.lane, lane.c.owner, is_over.label("is_over"), alive.label("alive")
    rows = connection.execute(select(*columns, *idle_limit(connection, lease_ms)).order_by(lane.c.lane)).all()
    own = [row.lane for row in rows if row.owner == owner]
    free = [row.lane for row in rows if row.owner != owner and (row.owner is None or row.is_over)]
    # Ceiling division: 16 lanes and 3 relays make shares of 6, so every lane has a relay.
    # None is alive if this relay was paused, since step 1, for longer than its lease.
    share = -(-LANES // max(1, rows[0].alive))
    # With lanes 0 to 7, a relay keeps 0 to 5; with lanes 0 to 2, it keeps them and takes three that are free.
    expected = own[:share] + free[: max(0, share - len(own))]
    # 3.
    if own[share:]:
        connection.execute(_release(tables, owner, own[share:]))
    # Check again under the row locks, since another relay may have acquired the lane since the SELECT.
    is_mine_or_free = or_(lane.c.owner == owner, lane.c.owner.is_(None), is_over)
    renewal = update(lane).where(lane.c.lane.in_(expected), is_mine_or_free).values(owner=owner, lease_until=until)
    if connection.execute(renewal).rowcount == len(expected):
        return frozenset(expected)
    # 4.
    return frozenset(connection.scalars(select(lane.c.lane).where(lane.c.owner == owner)))


def leave(connection: Connection, tables: Tables, owner: str) -> None:
    connection.execute(_release(tables, owner, range(LANES)))
    connection.execute(delete(tables.relay).where(tables.relay.c.owner == owner))


def _release(tables: Tables, owner: str, lanes: Iterable[int]) -> Update:
    lane = tables.lane
    return update(lane).where(lane.c.owner == owner, lane.c.lane.in_(list(lanes))).values(owner=None, lease_until=0)
