"""The processes of an effects soak: database, Redis, name server, broker behind a proxy, senders, relays, workers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import create_engine, text

from rucola.admin import AdminClient
from rucola.domain.topic import TopicConfig
from rucola.errors import MQError
from rucola.reliable import migration
from support.databases import DatabaseServer, server_user, serving, start_mariadb, start_postgresql, start_redis
from support.effects_soak import roles
from support.effects_soak.scene import GROUPS, QUEUES, STOCK, TABLES, TOPIC, Scene, engine_of, metadata
from support.proxy import Proxy
from support.servers import Server
from support.waiting import until

HOST, PROXY_HOST = "127.0.0.1", "127.0.0.2"
ADDRESS = re.compile(r"127\.0\.0\.[12]:(\d+)")
SENDERS = tuple(f"sender-{number}" for number in (1, 2, 3))
RELAYS = tuple(f"relay-{number}" for number in (1, 2, 3))
CONSUMERS = tuple(f"consumer-{group}-{number}" for group in GROUPS for number in (1, 2))
ROLES = (*SENDERS, *RELAYS, *CONSUMERS)
QUICK_RETRIES = " ".join(["1s"] * 18)
STOP_S = 60
BROKER_S = 30

STARTS = {
    "postgresql": ("postgres", start_postgresql),
    "mariadb": ("mysql", start_mariadb),
    "redis": ("redis", start_redis),
}


class Options(NamedTuple):
    """What one run is asked for."""

    database: str = "postgresql"
    with_redis: bool = True
    in_order: bool = True
    lease_ms: int = 3000
    stuck_after_ms: int = 90_000
    orders_per_s: float = 10.0
    """By each sender."""


class MessagingServers:
    """A name server, and a broker that its clients reach only through `proxy`. Both keep their ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, Server] = {}
        self._settings: dict[str, dict[str, str]] = {}
        self.store = directory / "store"
        self.proxy: Proxy

    @property
    def namesrv(self) -> str:
        return f"{HOST}:{self._settings['namesrv']['listenPort']}"

    async def start_all(self) -> None:
        self._settings["namesrv"] = {"bindAddress": HOST, "listenPort": "0"}
        await self.start("namesrv")
        self._settings["broker"] = {
            "brokerName": "broker-a", "brokerIP1": PROXY_HOST, "bindAddress": HOST, "listenPort": "0",
            "haListenPort": "0", "namesrvAddr": self.namesrv, "storePathRootDir": str(self.store),
            "mappedFileSizeCommitLog": str(1 << 24), "mappedFileSizeConsumeQueue": "20000", "maxHashSlotNum": "1000",
            "maxIndexNum": "4000", "messageDelayLevel": QUICK_RETRIES, "registerNameServerPeriod": "10000",
        }  # fmt: skip
        await self.start("broker")
        port = int(self._settings["broker"]["listenPort"])
        self.proxy = await Proxy(f"{HOST}:{port}", host=PROXY_HOST, port=port).__aenter__()
        await self.create_topic()

    async def start(self, name: str) -> None:
        """Start the server, on the port that it had before."""
        settings = self._settings[name]
        conf = self._directory / f"{name}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log = self._directory / f"{name}.log"
        running = await asyncio.to_thread(Server, name, "-c", conf, log=log)
        found = ADDRESS.search(running.first_line)
        if found is None:
            raise RuntimeError(f"{name} did not start: {log.read_text()[-2000:]}")
        settings["listenPort"] = found[1]
        self._servers[name] = running

    def send_signal(self, name: str, number: signal.Signals) -> None:
        self._servers[name].process.send_signal(number)

    async def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """End a server by a signal; return its exit code."""
        running = self._servers.pop(name)
        running.process.send_signal(number)
        code = await asyncio.to_thread(running.process.wait)
        running.stdout.close()
        return code

    def wipe(self) -> None:
        """Remove the disk of the broker, which must not be running."""
        shutil.rmtree(self.store)

    async def create_topic(self) -> None:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        address = f"{HOST}:{self._settings['broker']['listenPort']}"  # not through the proxy

        async def is_created() -> bool:
            try:
                async with AdminClient(self.namesrv) as admin:
                    await admin.topics.create_or_update(address, config)
            except MQError:
                return False
            return True

        await until(is_created, BROKER_S)

    async def close(self) -> None:
        for name in list(self._servers):
            await self.end(name, signal.SIGKILL)
        if hasattr(self, "proxy"):
            await self.proxy.__aexit__()


class RoleProcess:
    """A process of a role, which `replace` starts again. Its lives are numbered: sender-1.1, sender-1.2."""

    def __init__(self, role: str, scene: Scene) -> None:
        self._role = role
        self._scene = scene
        self._context = multiprocessing.get_context("forkserver")
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        kind, *rest = self._role.split("-")
        role = f"{kind}-{rest[0]}" if kind == "consumer" else kind
        name = f"{self._role}.{self.lives}"
        self.process: ForkServerProcess = self._context.Process(
            target=roles.main, args=(role, self._scene, name), name=name
        )
        self.process.start()

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        self.process.kill()
        await until(lambda: self.process.exitcode is not None, STOP_S)

    async def stop(self) -> int | None:
        """End the process as a service manager would; return its exit code, None if it had to be killed."""
        if self.process.exitcode is None:
            self.process.terminate()
        try:
            await until(lambda: self.process.exitcode is not None, STOP_S)
        except TimeoutError:
            await self.kill()
            return None
        return self.process.exitcode


class System:
    """All processes of a run. `async with system(...)` starts and ends them."""

    def __init__(
        self,
        scene: Scene,
        options: Options,
        messaging: MessagingServers,
        database: DatabaseServer | None,
        redis: DatabaseServer | None,
    ) -> None:
        self.scene = scene
        self.options = options
        self.messaging = messaging
        self.database = database
        self.redis = redis
        self.processes = {role: RoleProcess(role, scene) for role in ROLES}

    async def stop(self, names: tuple[str, ...]) -> list[str]:
        """Stop processes; return findings about those that did not end well."""
        codes = await asyncio.gather(*(self.processes[name].stop() for name in names))
        return [
            f"{name} ended with {code} instead of 0; its log is {name}.*.log"
            for name, code in zip(names, codes, strict=True)
            if code not in (0, -signal.SIGTERM)  # the latter if it had only just been started
        ]

    def ended(self) -> list[str]:
        """Return the names of processes that ended by themselves."""
        return [name for name, role in self.processes.items() if role.process.exitcode is not None]


@asynccontextmanager
async def system(directory: Path, options: Options) -> AsyncIterator[System]:
    """Start everything in `directory`; end it with the block."""
    (directory / "ledgers").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())

        def serve(kind: str) -> DatabaseServer:
            user, start = STARTS[kind]
            return servers.enter_context(serving(kind, server_user(user), start))

        database = None if options.database == "sqlite" else await asyncio.to_thread(serve, options.database)
        redis = await asyncio.to_thread(serve, "redis") if options.with_redis else None
        messaging = MessagingServers(directory)
        stack.push_async_callback(messaging.close)
        await messaging.start_all()
        url, stock_url = _databases(directory, database)
        scene = Scene(
            url, stock_url, messaging.namesrv, None if redis is None else redis.url, directory,
            options.lease_ms, options.stuck_after_ms, options.orders_per_s, options.in_order,
        )  # fmt: skip
        await asyncio.to_thread(_create_tables, scene)
        multiprocessing.get_context("forkserver").set_forkserver_preload([roles.__name__])
        running = System(scene, options, messaging, database, redis)
        try:
            yield running
        finally:
            await asyncio.gather(*(role.kill() for role in running.processes.values()))


def _databases(directory: Path, server: DatabaseServer | None) -> tuple[str, str]:
    """Return the URLs of the database with the stubs, and of that of the group `stock`, which is created."""
    if server is None:
        return f"sqlite:///{directory / 'shop.db'}", f"sqlite:///{directory / 'stock.db'}"
    engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {STOCK}"))
    stock_url = engine.url.set(database=STOCK).render_as_string(hide_password=False)
    engine.dispose()
    return server.url, stock_url


def _create_tables(scene: Scene) -> None:
    for url in (scene.url, scene.stock_url):
        engine = engine_of(url)
        with engine.begin() as connection:
            migration.init(connection, TABLES)
        metadata.create_all(engine)
        engine.dispose()
