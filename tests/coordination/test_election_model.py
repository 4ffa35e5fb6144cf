"""Random schedules of a simulated group: what an election promises holds after every step, whatever fails.

`simulation.election_world` describes the simulation. A number selects a schedule, so that a failure can be repeated:
`run(SEED)`. The same schedules find faults that are put into the election on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from rucola.coordination.decisions import ChangeInSync, Decision, Stand
from rucola.coordination.election import Election, Own, Role
from rucola.coordination.group_keys import NOT_STANDING, View
from simulation.election_world import Broken, World

STEPS = 6000


def run(seed: int, kind: type[Election] = Election, never_elected: frozenset[int] = frozenset()) -> World:
    world = World(Random(seed), kind, never_elected=never_elected)
    for _ in range(STEPS):
        world.step()
    return world


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 40), *(pytest.param(*seeds, marks=pytest.mark.slow) for seeds in ((40, 60), (100, 200), (300, 200)))],
)
def test_one_master_acknowledges_and_nothing_acknowledged_is_lost(first: int, count: int) -> None:
    worlds = [run(seed) for seed in range(first, first + count)]
    # The schedules are not empty: brokers take office again and again, and acknowledge.
    assert sum(world.elections for world in worlds) > len(worlds)
    assert sum(len(world.acknowledged) for world in worlds) > 10 * len(worlds)


@pytest.mark.parametrize(("first", "count"), [(0, 40), pytest.param(40, 400, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_with_a_member_that_is_never_elected(first: int, count: int) -> None:
    worlds = [run(seed, never_elected=frozenset({3})) for seed in range(first, first + count)]
    assert sum(world.elections for world in worlds) > len(worlds)
    assert sum(len(world.acknowledged) for world in worlds) > 10 * len(worlds)


class ForgetsPromises(Election):
    def promise(self, now_s: float, epoch: int) -> bool:
        return self.role is Role.SLAVE and epoch >= self.epoch


class StandsRightAfterItsStart(Election):
    def decide(self, now_s: float, view: View, own: Own) -> Decision:
        if view.state is not None and self.epoch == 0:
            self._promised_until_s = 0.0
        return super().decide(now_s, view, own)


class RenewsFromTheAnswer(Election):
    """As if the time of a renewal were that of its answer, and the margin for clocks were 0."""

    def renewed(self, lease: int, sent_s: float) -> None:
        super().renewed(lease, sent_s + 15)


class AsksOnlyOne(Election):
    @property
    def must_ask(self) -> frozenset[int]:
        return frozenset(sorted(super().must_ask)[:1])


class ShrinksBeforeEtcdDoes(Election):
    """The in-sync set of apache/rocketmq#5663: what the master wants is required, not what etcd may have."""

    def decide(self, now_s: float, view: View, own: Own) -> Decision:
        decision = super().decide(now_s, view, own)
        if isinstance(decision, ChangeInSync):
            self.in_sync = frozenset(decision.in_sync)
            self._sent.clear()
        return decision


class JoinsAsSoonAsConnected(Election):
    def _ready(self, now_s: float, own: Own) -> frozenset[int]:
        return frozenset(own.confirmed) & self._incarnations.keys() - self.in_sync


class TrustsOldConnections(Election):
    """A slave whose disk was wiped counts with what it confirmed before."""

    def _unknown(self, view: View) -> None:
        self._incarnations |= {member: record.incarnation for member, record in view.members.items()}


class GoesOnAfterItGaveUp(Election):
    """A master whose mark has reached etcd takes office again, as its lease did not end."""

    def decide(self, now_s: float, view: View, own: Own) -> Decision:
        self._given_up_epoch = 0
        return super().decide(now_s, view, own)


class RestoresWithEveryone(Election):
    """A state that etcd has lost is written again with all slaves that were seen."""

    def _restore(self, now_s: float, view: View) -> Decision:
        decision = super()._restore(now_s, view)
        return replace(decision, in_sync=self._incarnations) if isinstance(decision, Stand) else decision


class GrowsWhileItIsCompared(Election):
    """A candidate follows its last master on, and promises to it: its log is longer than it has announced."""

    def decide(self, now_s: float, view: View, own: Own) -> Decision:
        return super().decide(now_s, view, replace(own, may_grow=False))

    def promise(self, now_s: float, epoch: int) -> bool:
        standing, self._record = self._record, structs.replace(self._record, standing=NOT_STANDING)
        has_promised = super().promise(now_s, epoch)
        self._record = standing
        return has_promised


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        ForgetsPromises,
        StandsRightAfterItsStart,
        RenewsFromTheAnswer,
        AsksOnlyOne,
        ShrinksBeforeEtcdDoes,
        JoinsAsSoonAsConnected,
        TrustsOldConnections,
        GoesOnAfterItGaveUp,
        RestoresWithEveryone,
        GrowsWhileItIsCompared,
    ],
)
def test_the_schedules_find_known_faults(kind: type[Election]) -> None:
    assert any(is_broken(seed, kind) for seed in range(2500))


def is_broken(seed: int, kind: type[Election]) -> bool:
    try:
        run(seed, kind)
    except Broken:
        return True
    return False
