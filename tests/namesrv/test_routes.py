"""The route table alone: no socket, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rucola import refusals, slices
from rucola.access import Refused
from rucola.domain.route import BrokerData, QueueData, RegisterBrokerBody
from rucola.domain.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.namesrv import routes
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.routes import BROKER_EXPIRY_MS, Registration, RouteTable
from support.errors import raises
from support.examples import examples

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def body(*topics: TopicConfig, counter: int = 1, filter_servers: list[str] | None = None) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        filter_server_list=filter_servers or [],
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=DataVersion(counter=counter, timestamp=1_700_000_000_000),
            topic_config_table={topic.topic_name: topic for topic in topics},
        ),
    )


def topic(name: str, *, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
    )


def register(
    table: RouteTable,
    address: str = MASTER,
    name: str = "a",
    broker_id: int = 0,
    *topics: TopicConfig,
    cluster: str = "C",
    counter: int = 1,
    now_ms: int = 0,
    owner: object = None,
) -> tuple[str, str] | None:
    ha_server_addr = address.replace("10911", "10912")
    broker = Registration(address, name, broker_id, cluster, ha_server_addr)
    return slices.run(table.registration_steps(broker, body(*topics, counter=counter), now_ms, owner))


def test_a_registered_topic_has_a_route(table: RouteTable) -> None:
    assert register(table, MASTER, "a", 0, topic("T", queues=8, perm=4, sys_flag=1)) is None
    route = table.route("T")
    assert route is not None
    assert route.broker_datas == [BrokerData(broker_addrs={0: MASTER}, broker_name="a", cluster="C")]
    assert route.queue_datas == [
        QueueData(broker_name="a", perm=4, read_queue_nums=8, topic_sys_flag=1, write_queue_nums=8)
    ]
    assert route.filter_server_table == {}
    assert table.route("Other") is None


def test_a_slave_gets_its_masters_address_and_adds_no_topics(table: RouteTable) -> None:
    assert register(table, SLAVE, "a", 1, topic("OnlySlave")) is None, "no master is there yet"
    register(table, MASTER, "a", 0, topic("T"))
    assert register(table, SLAVE, "a", 1, topic("OnlySlave"), counter=2) == ("10.0.0.1:10912", MASTER)
    assert table.topics() == ["T"]
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: MASTER, 1: SLAVE}


def test_two_masters_of_one_name_are_logged_once_until_one_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    table, other = RouteTable(), "10.0.0.9:10911"

    def logged() -> int:
        return sum("both register with id 0" in record.getMessage() for record in caplog.records)

    register(table, MASTER)
    register(table, other)
    assert logged() == 0, "the first one may be gone: a machine was replaced, or a slave promoted"
    for address in (other, MASTER, other, MASTER):
        register(table, address)
    assert logged() == 1
    assert f"{other} and {MASTER}" in caplog.text
    table.unregister(other)
    register(table, MASTER)
    assert logged() == 1
    register(table, other)
    register(table, MASTER)
    assert logged() == 2


def test_a_slave_that_becomes_the_master_at_its_address_is_no_conflict(
    table: RouteTable, caplog: pytest.LogCaptureFixture
) -> None:
    register(table, MASTER)
    register(table, SLAVE, "a", 1)
    register(table, SLAVE, "a", 0)
    register(table, SLAVE, "a", 0)
    assert "both register" not in caplog.text


def test_a_master_of_an_older_epoch_is_refused(table: RouteTable, caplog: pytest.LogCaptureFixture) -> None:
    table.admit_master(MASTER, "a", 4)
    table.admit_master(MASTER, "a", 4)
    assert table.newest_master("a") == (4, MASTER)
    assert table.newest_master("b") == (0, "")
    for epoch in (3, 4, 4):
        with pytest.raises(Refused) as refused:
            table.admit_master(SLAVE, "a", epoch)
        assert refused.value.details == {"masterEpoch": "4", "masterAddr": MASTER}
    assert len(caplog.records) == 1
    table.admit_master(SLAVE, "b", 1)
    table.admit_master(SLAVE, "a", 5)
    with pytest.raises(Refused):
        table.admit_master(MASTER, "a", 4)
    # At the same address it is the same broker, which may have lost its disk: it is no second master.
    table.admit_master(SLAVE, "a", 1)
    assert table.newest_master("a") == (5, SLAVE)


def test_with_access_control_only_a_newer_master_replaces_an_address() -> None:
    """A master that hangs keeps its connection: the elected one must not wait until that is closed."""
    table = RouteTable(keeps_addresses=True)
    table.admit_master(MASTER, "a", 4)
    register(table, MASTER, "a", 0, topic("T"))
    with raises(Refused, refusal=refusals.ADDRESS_TAKEN):
        register(table, SLAVE, "a", 0, topic("T"))
    with raises(Refused, refusal=refusals.EPOCH_TAKEN, epoch=4, master=MASTER):
        table.admit_master(SLAVE, "a", 4)
    table.admit_master(SLAVE, "a", 5)
    register(table, SLAVE, "a", 0, topic("T"))
    with raises(Refused, refusal=refusals.ADDRESS_TAKEN):
        register(table, MASTER, "a", 0, topic("T"))
    table.unregister(MASTER)
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: SLAVE}


def test_the_masters_that_are_remembered_are_bounded(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_MASTERS", 2)
    for name in ("a", "b", "b", "c"):
        table.admit_master(MASTER, name, 1)
    assert [table.newest_master(name)[0] for name in "abc"] == [0, 1, 1]


def test_topics_change_only_with_the_data_version(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("T", queues=4), counter=1)
    register(table, MASTER, "a", 0, topic("T", queues=16), counter=1)
    assert [data.read_queue_nums for data in queues_of(table, "T")] == [4]
    register(table, MASTER, "a", 0, topic("T", queues=16), counter=2)
    assert [data.read_queue_nums for data in queues_of(table, "T")] == [16]


def test_a_registration_with_one_new_topic_keeps_the_others(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("T1"), counter=1)
    register(table, MASTER, "a", 0, topic("T2"), counter=2)
    assert table.topics() == ["T1", "T2"]


def test_a_registration_with_all_topics_completes_one_with_a_few(table: RouteTable) -> None:
    """A name server that starts anew may hear of a changed topic before it hears of all."""
    register(table, MASTER, "a", 0, topic("Changed"), counter=7)
    register(table, MASTER, "a", 0, topic("Changed"), topic("Other"), counter=7)
    assert table.topics() == ["Changed", "Other"]


def steps(table: RouteTable, *topics: TopicConfig, counter: int) -> Generator[None, None, object]:
    return table.registration_steps(Registration(MASTER, "a", 0, "C", ""), body(*topics, counter=counter), 0)


def test_a_registration_in_steps_ends_when_its_broker_is_removed(table: RouteTable) -> None:
    running = steps(table, topic("A"), topic("B"), counter=1)
    next(running)
    table.unregister(MASTER)
    assert list(running) == []
    assert (table.topics(), table.clusters().broker_addr_table) == ([], {})


def test_registrations_that_overlap_leave_the_newest_topics() -> None:
    for repeated in (2, 3):
        table = RouteTable()
        register(table, MASTER, "a", 0, topic("A", queues=1), topic("B", queues=1), counter=1)
        first = steps(table, topic("A", queues=2), topic("B", queues=2), counter=2)
        next(first)
        second = steps(table, topic("A", queues=repeated), topic("B", queues=repeated), counter=repeated)
        next(second)
        assert len([*first, *second]) <= 2
        for name in ("A", "B"):
            route = table.route(name)
            assert route is not None
            assert [queues.read_queue_nums for queues in route.queue_datas] == [repeated]


def test_topics_of_a_removed_broker_are_gone_before_they_are_swept(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("A"), topic("Both"))
    register(table, SLAVE, "b", 0, topic("B"), topic("Both"))
    table.unregister(MASTER)
    assert (table.route("A"), [data.broker_name for data in queues_of(table, "Both")]) == (None, ["b"])
    assert table.topics() == ["Both", "B"]
    assert table.topic_count == 3, "nothing was swept yet"
    sweeping = table.sweep_steps()
    next(sweeping)
    # Its successor registers in between, with a topic that it had and one that it had not.
    register(table, MASTER, "a", 0, topic("A", queues=1), topic("New"))
    assert len([*sweeping, *table.sweep_steps()]) == 1
    assert sorted(table.topics()) == ["A", "B", "Both", "New"]
    assert [data.read_queue_nums for data in queues_of(table, "A")] == [1]
    assert [data.broker_name for data in queues_of(table, "Both")] == ["b"]
    table.unregister(MASTER)
    table.unregister(SLAVE)
    assert len([*table.sweep_steps()]) == 4
    assert table.topic_count == 0


def test_a_registration_in_steps_ends_when_its_broker_was_replaced_by_another(table: RouteTable) -> None:
    running = steps(table, topic("A"), topic("B"), counter=1)
    next(running)
    table.unregister(MASTER)
    register(table, MASTER, "a", 0, topic("C"), counter=1)
    assert list(running) == []
    assert table.topics() == ["C"]


def test_registrations_are_bounded() -> None:
    """What is registered stays and can be refreshed; what was removed makes room."""
    limits = NamesrvConfig(max_brokers=2, max_topics=3)
    table = RouteTable(lambda: limits)
    register(table, MASTER, "a", 0, topic("A"), topic("B"))
    with raises(Refused, address=SLAVE, key="maxTopics", found="2 topics beside 2", limit=3):
        register(table, SLAVE, "b", 0, topic("A"), topic("B"))
    assert list(table.clusters().broker_addr_table) == ["a"]
    register(table, SLAVE, "b", 0, topic("A"))
    register(table, MASTER, "a", 0, topic("A", queues=9), topic("B"), counter=2)
    assert [data.read_queue_nums for data in queues_of(table, "A")] == [9, 4]
    with raises(Refused, key="maxBrokers", limit=2):
        register(table, "10.0.0.3:10911", "a", 1)
    table.unregister(SLAVE)
    slices.run(table.sweep_steps())
    register(table, "10.0.0.3:10911", "c", 0, topic("C"))
    assert sorted(table.topics()) == ["A", "B", "C"]


def test_registrations_that_run_at_once_are_bounded_together() -> None:
    limits = NamesrvConfig(max_topics=3)
    table = RouteTable(lambda: limits)
    running = steps(table, topic("A"), topic("B"), counter=1)
    next(running)
    register(table, SLAVE, "b", 0, topic("A"), topic("B"))
    with raises(Refused, key="maxTopics", found="1 topics beside 3"):
        next(running)
    assert sorted(table.topics()) == ["A", "B"]


def test_long_names_are_refused(table: RouteTable) -> None:
    for address, name, cluster in ((MASTER * 50, "a", "C"), (MASTER, "a" * 513, "C"), (MASTER, "a", "C" * 513)):
        with raises(Refused, refusal=refusals.FIELD_TOO_LONG, limit=512):
            register(table, address, name, 0, cluster=cluster)
    with raises(Refused, field="brokerName", size=513):
        table.admit_master(MASTER, "a" * 513, 1)
    assert table.broker_count == 0


def test_a_promoted_slave_loses_its_old_id(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("T"))
    register(table, SLAVE, "a", 1)
    table.unregister(MASTER)
    assert addresses(table, "a") == {1: SLAVE}
    register(table, SLAVE, "a", 0, topic("T"), counter=5)
    assert addresses(table, "a") == {0: SLAVE}
    assert table.topics() == ["T"]


def test_a_renamed_broker_leaves_no_old_routes(table: RouteTable) -> None:
    register(table, MASTER, "old", 0, topic("T"))
    register(table, MASTER, "new", 0, topic("T"))
    assert list(table.clusters().broker_addr_table) == ["new"]
    assert [data.broker_name for data in queues_of(table, "T")] == ["new"]


def test_a_late_unregistration_keeps_the_successor(table: RouteTable) -> None:
    register(table, "10.0.0.1:1", "a", 0, topic("T"))
    register(table, "10.0.0.1:2", "a", 0, topic("T"))
    table.unregister("10.0.0.1:1")
    assert addresses(table, "a") == {0: "10.0.0.1:2"}
    table.unregister("10.0.0.1:1")
    assert table.topics() == ["T"]


def test_a_displaced_address_can_be_removed_after_its_broker(table: RouteTable) -> None:
    register(table, "10.0.0.1:1", "a", 0, topic("T"))
    register(table, "10.0.0.1:2", "a", 0, topic("T"))
    table.unregister("10.0.0.1:2")
    table.unregister("10.0.0.1:1")
    assert table.clusters().broker_addr_table == {}


def test_a_registration_expires_after_two_minutes_of_silence(table: RouteTable) -> None:
    first, second = object(), object()
    register(table, MASTER, "a", 0, topic("T"), now_ms=1_000, owner=first)
    register(table, SLAVE, "b", 0, topic("T"), now_ms=1_001, owner=second)
    assert table.remove_expired(1_000 + BROKER_EXPIRY_MS) == []
    assert table.remove_expired(1_001 + BROKER_EXPIRY_MS) == [first]
    assert [data.broker_name for data in queues_of(table, "T")] == ["b"]


def test_an_equal_data_version_renews_a_registration(table: RouteTable) -> None:
    version = body(counter=7).topic_config_serialize_wrapper.data_version
    assert not table.confirm(MASTER, version, 0)
    assert table.data_version(MASTER) is None
    register(table, MASTER, "a", 0, topic("T"), counter=7)
    assert table.confirm(MASTER, version, BROKER_EXPIRY_MS)
    assert not table.confirm(MASTER, DataVersion(counter=8, timestamp=version.timestamp), 2 * BROKER_EXPIRY_MS)
    assert table.data_version(MASTER) == version
    assert table.remove_expired(2 * BROKER_EXPIRY_MS) == []
    assert table.remove_expired(2 * BROKER_EXPIRY_MS + 1) == [None]


def test_only_the_newest_connection_of_a_broker_unregisters_it(table: RouteTable) -> None:
    old, new = object(), object()
    register(table, owner=old)
    register(table, owner=new)
    table.remove_owned(old)
    assert addresses(table, "a") == {0: MASTER}
    table.remove_owned(new)
    assert table.clusters().broker_addr_table == {}


def test_clusters_follow_the_newest_registration(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("TA"), cluster="C1")
    register(table, SLAVE, "b", 0, topic("TB"), cluster="C1")
    assert table.clusters().cluster_addr_table == {"C1": ["a", "b"]}
    register(table, SLAVE, "b", 0, topic("TB"), cluster="C2")
    assert table.clusters().cluster_addr_table == {"C1": ["a"], "C2": ["b"]}
    assert slices.run(table.topics_of_cluster_steps("C2")) == ["TB"]
    assert slices.run(table.topics_of_cluster_steps("C3")) == []
    assert table.system_topics() == (["C1", "a", "C2", "b"], MASTER)


def test_an_empty_table_has_system_topics() -> None:
    assert RouteTable().system_topics() == ([], None)


def test_write_permission_can_be_wiped_and_restored(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("TBW102", perm=7), topic("T", perm=6))
    register(table, SLAVE, "b", 0, topic("T", perm=6))
    before = queues_of(table, "T")
    assert slices.run(table.set_writable_steps("a", False)) == 2
    assert [data.perm for data in queues_of(table, "T")] == [4, 6]
    assert [data.perm for data in queues_of(table, "TBW102")] == [5]
    assert [data.perm for data in before] == [6, 6], "an answer given before is a snapshot"
    assert slices.run(table.set_writable_steps("a", True)) == 2
    assert [data.perm for data in queues_of(table, "TBW102")] == [7]
    assert slices.run(table.set_writable_steps("nobody", False)) == 0


def test_a_topic_is_deleted_from_one_cluster_or_all(table: RouteTable) -> None:
    register(table, MASTER, "a", 0, topic("T"), cluster="C1")
    register(table, SLAVE, "b", 0, topic("T"), cluster="C2")
    table.delete_topic("T", "C3")
    table.delete_topic("T", "C1")
    assert [data.broker_name for data in queues_of(table, "T")] == ["b"]
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.topics() == []


def test_a_route_contains_filter_servers(table: RouteTable) -> None:
    broker = Registration(MASTER, "a", 0, "C", "")
    slices.run(table.registration_steps(broker, body(topic("T"), filter_servers=["10.0.0.9:3"]), 0))
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {MASTER: ["10.0.0.9:3"]}


def queues_of(table: RouteTable, name: str) -> list[QueueData]:
    route = table.route(name)
    assert route is not None
    return route.queue_datas


def addresses(table: RouteTable, broker_name: str) -> dict[int, str]:
    return table.clusters().broker_addr_table[broker_name].broker_addrs


class Registrations(RuleBasedStateMachine):
    """Whatever brokers do, the tables agree with each other and with a list of who registered last when."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ms = 0
        self.heard: dict[str, tuple[int, str, int]] = {}  # address -> when, broker name, owner
        self.counter = 0

    addresses = st.sampled_from([f"10.0.0.{host}:10911" for host in range(1, 5)])
    names = st.sampled_from(["a", "b"])
    topic_names = st.lists(st.sampled_from(["T1", "T2", "T3"]), unique=True)

    @rule(
        address=addresses,
        name=names,
        broker_id=st.integers(0, 2),
        topics=topic_names,
        cluster=st.sampled_from(["C1", "C2"]),
        owner=st.integers(0, 2),
        is_new=st.booleans(),
    )
    def register(
        self, address: str, name: str, broker_id: int, topics: list[str], cluster: str, owner: int, is_new: bool
    ) -> None:
        self.counter += is_new
        register(
            self.table, address, name, broker_id, *map(topic, topics),
            cluster=cluster, counter=self.counter, now_ms=self.now_ms, owner=OWNERS[owner],
        )  # fmt: skip
        self.heard[address] = self.now_ms, name, owner

    @rule(address=addresses)
    def unregister(self, address: str) -> None:
        self.table.unregister(address)
        self.heard.pop(address, None)

    @rule(owner=st.integers(0, 2))
    def lose(self, owner: int) -> None:
        self.table.remove_owned(OWNERS[owner])
        self.heard = {address: entry for address, entry in self.heard.items() if entry[2] != owner}

    @rule(elapsed_ms=st.integers(0, BROKER_EXPIRY_MS))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.table.remove_expired(self.now_ms)
        self.heard = {
            address: entry for address, entry in self.heard.items() if entry[0] + BROKER_EXPIRY_MS >= self.now_ms
        }

    @rule(count=st.integers(1, 4))
    def sweep(self, count: int) -> None:
        for _ in zip(range(count), self.table.sweep_steps(), strict=False):
            pass

    @rule(name=names, writable=st.booleans())
    def set_writable(self, name: str, writable: bool) -> None:
        slices.run(self.table.set_writable_steps(name, writable))

    @rule(name=st.sampled_from(["T1", "T2"]), cluster=st.sampled_from(["C1", "C2", None]))
    def delete_topic(self, name: str, cluster: str | None) -> None:
        self.table.delete_topic(name, cluster)

    @invariant()
    def tables_agree(self) -> None:
        info = self.table.clusters()
        placed = [
            (address, name) for name, data in info.broker_addr_table.items() for address in data.broker_addrs.values()
        ]
        assert len(dict(placed)) == len(placed), "an address stands in one place"
        assert all(self.heard[address][1] == name for address, name in placed)
        assert set(info.broker_addr_table) == {name for _, name in placed}
        assert sorted(name for names in info.cluster_addr_table.values() for name in names) == sorted(
            info.broker_addr_table
        )
        for name in self.table.topics():
            route = self.table.route(name)
            assert route is not None
            assert [data.broker_name for data in route.queue_datas] == [b.broker_name for b in route.broker_datas]
            assert all(info.broker_addr_table[b.broker_name] == b for b in route.broker_datas)
            found = [slices.run(self.table.topics_of_cluster_steps(cluster)) for cluster in info.cluster_addr_table]
            assert any(name in topics for topics in found)

    def teardown(self) -> None:
        for address in self.heard:
            self.table.unregister(address)
        slices.run(self.table.sweep_steps())
        assert (self.table.topic_count, self.table.broker_count) == (0, 0)


OWNERS = [object(), object(), object()]
TestRegistrations = Registrations.TestCase
TestRegistrations.settings = settings(max_examples=examples(60), stateful_step_count=30)
