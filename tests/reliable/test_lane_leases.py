"""Leases of lanes."""

from __future__ import annotations

from rucola.reliable import lane_leases
from rucola.reliable.schema import LANES
from support.databases import OutboxDatabase


def test_relay_whose_lease_ends_during_a_renewal_is_its_own_only_competitor(sqlite_db: OutboxDatabase) -> None:
    with sqlite_db.engine().begin() as connection:
        assert len(lane_leases.renew(connection, sqlite_db.tables, "paused", lease_ms=-1)) == LANES
