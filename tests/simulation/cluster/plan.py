"""The plan of one run: a cluster, its clients and its faults, all drawn from a seed before anything starts.

Each part draws from a generator of its own, so that a plan without one of its faults or clients, which `smaller` makes,
is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

LENGTH_S = 60.0
"""How long clients send and faults come; then everything is healed, and must drain."""

ORDERS = "orders"
"""The topic of the messages of the outbox."""
PASSING = "passing"
"""The topic that an operator deletes."""

CLIENTS = {
    "producer": "sends messages one by one to any queue, some in batches",
    "keyed": "sends messages in order, by key, each after the one before",
    "delayed": "sends messages that are delivered later",
    "transactional": "sends messages whose transactions are committed, rolled back or left open for a check",
    "push": "consumes concurrently; its listener fails now and then",
    "orderly": "consumes in order; its listener fails now and then",
    "broadcast": "consumes all messages by itself",
    "pull": "reads each queue from its begin",
    "pop": "receives by POP, acknowledges, or leaves messages to others",
    "timed": "sends messages that are delivered at a time of their own",
    "picky": "consumes concurrently; what its listener never takes becomes a dead letter",
    "outbox": "adds messages to an outbox, in transactions that are committed or rolled back",
    "relay": "sends the messages of the outbox",
    "billing": "consumes the messages of the outbox with an idempotent listener",
}
SHOP = ("outbox", "relay", "billing")
"""The clients that use databases."""

FAULTS = {
    "kill": "a server is ended by kill -9, and starts on its files after a while",
    "restart": "a server is stopped and started",
    "power": "a server's machine loses its power; what was not synced may be lost or torn",
    "crash": "a client is ended by kill -9, and another one takes its place",
    "leave": "a client is closed, and another one takes its place",
    "pause": "none of a process's code runs for a while",
    "cut": "no bytes pass between two machines for a while",
    "half-cut": "no bytes pass between two machines in one direction for a while",
    "reset": "all connections between two machines break",
    "clock": "the wall clock of a machine jumps",
    "full": "the disk of a broker refuses to grow for a while",
    "eio": "the disk of a broker fails a sync, and the broker is started again",
    "offsets": "an operator resets the offsets of a group to the begin",
    "topic": "an operator gives a topic more queues",
    "lease": "etcd ends all leases of a group",
    "switchover": "an operator names another member of a group as its master",
    "redrive": "an operator sends the dead letters of a group to it again",
    "config": "an operator changes the configuration of a running broker",
    "expire": "an operator has a broker delete its expired files",
    "usage": "the disk of a broker is nearly full for a while: log files are deleted earlier, or messages refused",
    "promote": "a master is killed, an operator promotes its slave, and demotes the old master when that is back",
    "purge": "an operator deletes a topic, removes what is left of it, and creates it again",
    "locked": "another program has a database locked for a while",
    "archive": "the archive job archives the store of a broker, or is ended by kill -9 in the middle of that",
}
ELECTED = ("lease", "switchover")
"""These come only to groups with an election, in place of other faults."""
OPERATIONS = ("redrive", "config", "expire", "usage", "promote", "purge", "locked", "archive")
"""These come in addition to other faults."""
FREQUENT = ("kill", "power", "power", "kill", "crash", "eio", "cut")
"""These come more often than others."""


@dataclass(frozen=True)
class Client:
    kind: str
    number: int
    topic: str
    group: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    target: str
    other: str = ""
    length_s: float = 0.0
    number: int = 0
    """Of the faults that were drawn: what is left to chance in it depends on no other fault."""

    def __str__(self) -> str:
        other = f" and {self.other}" if self.other else ""
        length = f" for {self.length_s:.1f} s" if self.length_s else ""
        return f"{self.kind} {self.target}{other}{length}"


@dataclass(frozen=True)
class Plan:
    seed: int
    namesrvs: int
    groups: int
    has_slaves: bool
    is_sync_flush: bool
    is_sync_master: bool
    queues: int
    latency_s: float
    thread_s: float
    """How long a flush, or another call in a thread, takes on average."""
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]
    length_s: float = LENGTH_S
    elected: int = 0
    """Members of the only group, which elect their master; 0 without an election."""
    reserved_s: int = 0
    """fileReservedTime, of whose hours each takes a second; 0 with log files that are never full."""
    is_always_expiring: bool = False
    """Whether deleteWhen has all hours; else none."""

    @property
    def topics(self) -> list[str]:
        more = {ORDERS: self.has_shop, PASSING: any(client.topic == PASSING for client in self.clients)}
        return ["plain", "ordered", *(topic for topic, is_used in more.items() if is_used)]

    @property
    def has_shop(self) -> bool:
        """Whether there are clients that use databases."""
        return any(client.kind in SHOP for client in self.clients)

    @property
    def has_archive(self) -> bool:
        return any(fault.kind == "archive" for fault in self.faults)

    @property
    def brokers(self) -> list[str]:
        if self.elected:
            return [f"broker-0-{member}" for member in range(1, self.elected + 1)]
        masters = [f"broker-{number}" for number in range(self.groups)]
        return masters + ([f"{name}-slave" for name in masters] if self.has_slaves else [])

    @property
    def masters(self) -> list[str]:
        """The brokers that are master, or may become it."""
        return self.brokers if self.elected else self.brokers[: self.groups]

    @property
    def servers(self) -> list[str]:
        etcd = ["etcd"] if self.elected else []
        return etcd + [f"namesrv-{number}" for number in range(self.namesrvs)] + self.brokers

    def describe(self) -> list[str]:
        """The plan as lines of text."""
        flush = "SYNC_FLUSH" if self.is_sync_flush else "ASYNC_FLUSH"
        role = "SYNC_MASTER" if self.is_sync_master else "ASYNC_MASTER"
        slaves = f"{'with' if self.has_slaves else 'without'} slaves"
        lines = [
            f"seed {self.seed}: {self.namesrvs} name servers, {self.groups} groups of brokers, {flush}, {role}, "
            f"{f'{self.elected} elected members' if self.elected else slaves}, {self.queues} queues per topic, "
            f"latency {self.latency_s * 1000:g} ms, flushes {self.thread_s * 1000:g} ms{self._retention}",
            "clients: " + (", ".join(client.name for client in self.clients) or "none"),
        ]
        return lines + [f"fault at {fault.at_s:.1f} s: {fault}" for fault in self.faults]

    @property
    def _retention(self) -> str:
        when = "at any hour" if self.is_always_expiring else "when asked"
        return f", files deleted {when} after {self.reserved_s} s" if self.reserved_s else ""

    def smaller(self) -> Iterator[Plan]:
        """Yield plans that lack something: half of the faults, one fault, one client, a part of the cluster."""
        if len(self.faults) > 3:
            half = len(self.faults) // 2
            yield replace(self, faults=self.faults[:half])
            yield replace(self, faults=self.faults[half:])
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        for number in range(len(self.clients)):
            yield replace(self, clients=self.clients[:number] + self.clients[number + 1 :])
        if self.namesrvs > 1:
            yield self._without("namesrv-1", namesrvs=1)
        if self.groups > 1:
            yield self._without("broker-1", groups=1)
        if self.elected > 2:
            yield self._without(f"broker-0-{self.elected}", elected=self.elected - 1)
        if self.queues > 1:
            yield replace(self, queues=1)

    def _without(self, name: str, **changes: int) -> Plan:
        faults = tuple(
            each for each in self.faults if not each.target.startswith(name) and not each.other.startswith(name)
        )
        return replace(self, faults=faults, **changes)  # type: ignore[arg-type]


def draw(seed: int, length_s: float = LENGTH_S) -> Plan:
    """Draw a plan."""
    chance = Random(f"{seed}/cluster")
    has_slaves = chance.random() < 0.5
    plan = Plan(
        seed,
        namesrvs=chance.choice((1, 1, 2)),
        groups=chance.choice((1, 1, 2)),
        has_slaves=has_slaves,
        is_sync_flush=chance.random() < 0.5,
        is_sync_master=has_slaves and chance.random() < 0.6,
        queues=chance.choice((1, 2, 4)),
        latency_s=chance.choice((0.0005, 0.005, 0.05)),
        thread_s=chance.choice((0.0005, 0.01, 0.2)),
        clients=(),
        faults=(),
        length_s=length_s,
        elected=Random(f"{seed}/elected").choice((0, 0, 0, 0, 0, 2, 3)),
    )
    if plan.elected:
        plan = replace(plan, groups=1, has_slaves=False, is_sync_master=True)
    more = Random(f"{seed}/more clients")
    clients = [*_clients(Random(f"{seed}/clients")), *_more_clients(more)]
    plan = replace(plan, clients=tuple(clients))
    faults = [*_faults(plan, Random(f"{seed}/faults"))]
    faults += _operations(plan, Random(f"{seed}/operations"), len(faults))
    orders = Random(f"{seed}/orders")
    if shop := tuple(_shop(orders)):
        plan = replace(plan, clients=plan.clients + shop)
        faults += _shop_faults(plan, shop, orders, len(faults))
    cuts = [fault for fault in faults if fault.kind == "power"]
    jobs = _archive_jobs(plan, cuts, Random(f"{seed}/archiver"), len(faults))
    faults += jobs
    if not shop and not jobs:
        plan, more_faults = _with_retention(plan, Random(f"{seed}/retention"), len(faults))
        faults += more_faults
        faults += _promotions(plan, Random(f"{seed}/promotions"), len(faults))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _clients(chance: Random) -> Iterator[Client]:
    yield Client("producer", 0, "plain")
    yield Client("push", 0, "plain", "g-push")
    if chance.random() < 0.5:
        yield Client("push", 1, "plain", "g-push")
    optional = ["keyed", "delayed", "transactional", "broadcast", "pull", "pop"]
    for kind in chance.sample(optional, chance.randrange(1, len(optional) + 1)):
        yield Client(kind, 0, "ordered" if kind == "keyed" else "plain", f"g-{kind}")
        if kind == "keyed":
            yield Client("orderly", 0, "ordered", "g-orderly")
            yield Client("orderly", 1, "ordered", "g-orderly")
        elif kind == "pop" and chance.random() < 0.5:
            yield Client("pop", 1, "plain", "g-pop")


def _more_clients(chance: Random) -> Iterator[Client]:
    if chance.random() < 0.2:
        yield Client("timed", 0, "plain")
    if chance.random() < 0.2:
        yield Client("picky", 0, "plain", "g-picky")


def _shop(chance: Random) -> Iterator[Client]:
    if chance.random() < 0.15:
        yield Client("outbox", 0, ORDERS)
        for kind in ("relay", "billing"):
            for number in range(chance.choice((1, 2))):
                yield Client(kind, number, ORDERS, "g-billing" if kind == "billing" else "")


def _shop_faults(plan: Plan, shop: tuple[Client, ...], chance: Random, first: int) -> Iterator[Fault]:
    """Faults of the clients that use databases, in addition to those of other clients."""
    for number in range(first, first + chance.randrange(2, 9)):
        kind = chance.choice(("crash", "crash", "crash", "leave", "pause", "cut", "half-cut", "clock", "locked"))
        at_s, length_s = chance.uniform(2.0, plan.length_s), chance.choice((0.5, 3.0, 20.0)) * chance.uniform(0.5, 1.5)
        target, other = chance.choice(shop).name, ""
        if kind in ("cut", "half-cut"):
            other = chance.choice(plan.servers)
            if chance.random() < 0.5:
                target, other = other, target
        elif kind in ("clock", "locked"):
            target = "database"
            length_s = chance.choice((-30.0, -2.0, 2.0, 30.0)) if kind == "clock" else length_s
        elif kind == "leave":
            length_s = 0.0
        yield Fault(at_s, kind, target, other, length_s, number)


def _archive_jobs(plan: Plan, cuts: list[Fault], chance: Random, first: int) -> Iterator[Fault]:
    if chance.random() < 0.15 and not plan.elected:
        for number in range(first, first + chance.randrange(2, 7)):
            at_s, target = chance.uniform(5.0, plan.length_s), chance.choice(plan.brokers)
            if cuts and chance.random() < 0.4:  # what is archived there may not be synced
                cut = chance.choice(cuts)
                at_s, target = cut.at_s - chance.uniform(0.0, 0.5), cut.target
            yield Fault(at_s, "archive", target, number=number)


def _operations(plan: Plan, chance: Random, first: int) -> Iterator[Fault]:
    operations = []
    if any(client.kind == "picky" for client in plan.clients):
        operations += ["redrive"] * chance.randrange(1, 4)
    if chance.random() < 0.2:
        operations += ["config"] * chance.randrange(1, 4)
    for number, kind in enumerate(operations, first):
        target = "g-picky" if kind == "redrive" else chance.choice(plan.masters)
        yield Fault(chance.uniform(10.0, plan.length_s), kind, target, number=number)


def _with_retention(plan: Plan, chance: Random, first: int) -> tuple[Plan, list[Fault]]:
    """Return a plan in which files expire, or the same, and what makes them expire."""
    if chance.random() >= 0.25:
        return plan, []
    plan = replace(plan, reserved_s=chance.choice((3, 10, 30)), is_always_expiring=chance.random() < 0.5)
    kinds = ["expire"] * chance.randrange(1, 3) + ["usage"] * chance.randrange(3)
    if plan.reserved_s < 30 and chance.random() < 0.4:
        clients = Client("producer", 9, PASSING), Client("push", 9, PASSING, "g-passing")
        plan = replace(plan, clients=plan.clients + clients)
        kinds.append("purge")
    faults = []
    for number, kind in enumerate(kinds, first):
        at_s = chance.uniform(3.0, plan.length_s / (5 if kind == "purge" else 1))
        target = PASSING if kind == "purge" else chance.choice(plan.masters if kind == "expire" else plan.brokers)
        length_s = {"usage": chance.uniform(3.0, 20.0), "purge": chance.uniform(20.0, 35.0)}.get(kind, 0.0)
        faults.append(Fault(at_s, kind, target, length_s=length_s, number=number))
    return plan, faults


def _promotions(plan: Plan, chance: Random, first: int) -> Iterator[Fault]:
    if plan.has_slaves and chance.random() < 0.3:
        for number in range(first, first + chance.randrange(1, 4)):
            kind = chance.choice(("promote", "switchover"))
            length_s = chance.uniform(1.0, 20.0) if kind == "promote" else 0.0
            yield Fault(
                chance.uniform(5.0, plan.length_s), kind, chance.choice(plan.masters), length_s=length_s, number=number
            )


def _faults(plan: Plan, chance: Random) -> Iterator[Fault]:
    servers, brokers = plan.servers, plan.brokers
    clients = [client.name for client in plan.clients]
    # Each run has some kinds of faults: with all of them at once, nothing works for long.
    usual = [kind for kind in FAULTS if kind not in ELECTED + OPERATIONS]
    kinds = chance.sample([*usual, *FREQUENT], chance.randrange(1, 6))
    times = sorted(
        chance.uniform(2.0, plan.length_s) for _ in range(int(plan.length_s / 60 * chance.randrange(1, 9)) or 1)
    )
    for number, at_s in enumerate(times):
        kind = chance.choice(kinds)
        if plan.elected and chance.random() < 0.2:
            kind = chance.choice(ELECTED)
        length_s = chance.choice((0.5, 3.0, 12.0, 30.0)) * chance.uniform(0.5, 1.5)
        target, other = chance.choice(brokers), ""
        if kind in ("kill", "restart", "power"):
            target = chance.choice(servers) if kind != "power" else target
        elif kind in ("crash", "leave"):
            target = chance.choice(clients)
        elif kind == "pause":
            target = chance.choice(servers + clients)
        elif kind in ("cut", "half-cut", "reset"):
            target, other = chance.sample(servers + clients, 2)
            if chance.random() < 0.7:  # most pairs have nothing to say to each other
                target = chance.choice(servers)
                other = chance.choice([each for each in servers + clients if each != target])
            if chance.random() < 0.5:
                target, other = other, target
        elif kind == "clock":
            target = chance.choice(servers + clients)
            length_s = chance.choice((-30.0, -2.0, 0.5, 2.0, 30.0))
        elif kind == "offsets":
            groups = [client.group for client in plan.clients if client.kind in ("push", "orderly")]
            target, length_s = chance.choice(groups), 0.0
        elif kind == "topic":
            target, length_s = chance.choice(("plain", "ordered")), 0.0
        if kind == "lease":
            target = "etcd"
        if kind in ("restart", "reset", "leave", "eio", *ELECTED):
            length_s = 0.0
        yield Fault(at_s, kind, target, other, length_s, number)
