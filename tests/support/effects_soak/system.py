"""The processes of an effects soak: database, Redis, name server, broker behind a proxy, senders, relays, workers.

All have the same four methods, which take effect before they return: `start`, on the port and data that it had before,
`signal`, `kill`, as a crash does, and `stop`, which asks it to end and returns its exit code.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sqlalchemy import create_engine, text

from rucola.admin import AdminClient
from rucola.domain.topic import TopicConfig
from rucola.errors import MQError
from rucola.reliable import migration
from support.databases import DatabaseServer, server_user, serving, start_mariadb, start_postgresql, start_redis
from support.effects_soak import roles
from support.effects_soak.scene import GROUPS, QUEUES, TABLES, TOPIC, Options, Scene, engine_of, metadata
from support.proxy import Proxy
from support.servers import Server
from support.waiting import until

HOST, PROXY_HOST = "127.0.0.1", "127.0.0.2"
ADDRESS = re.compile(r"127\.0\.0\.[12]:(\d+)")
SENDERS, RELAYS, *_ = KINDS = [
    tuple(f"{kind}-{number}" for number in range(1, count + 1))
    for kind, count in [("sender", 3), ("relay", 3), *((group, 2) for group in GROUPS)]
]
CONSUMERS = (*KINDS[2], *KINDS[3])
STOP_S = 60
BROKER = {
    "brokerName": "broker-a", "brokerIP1": PROXY_HOST, "haListenPort": "0", "mappedFileSizeCommitLog": str(1 << 24),
    "mappedFileSizeConsumeQueue": "20000", "maxHashSlotNum": "1000", "maxIndexNum": "4000",
    "messageDelayLevel": " ".join(["1s"] * 18), "registerNameServerPeriod": "10000",
}  # fmt: skip
STARTS = {
    "postgresql": ("postgres", start_postgresql),
    "mariadb": ("mysql", start_mariadb),
    "redis": ("redis", start_redis),
}


class RucolaServer:
    """A name server or broker."""

    def __init__(self, name: str, directory: Path, **settings: str) -> None:
        self._name = name
        self._path = directory / name
        self._settings = {"bindAddress": HOST, "listenPort": "0", **settings}

    @property
    def address(self) -> str:
        return f"{HOST}:{self._settings['listenPort']}"

    async def start(self) -> None:
        conf, log = self._path.with_suffix(".conf"), self._path.with_suffix(".log")
        conf.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        self._server = await asyncio.to_thread(Server, self._name, "-c", conf, log=log)
        found = ADDRESS.search(self._server.first_line)
        assert found, f"{self._name} did not start: {log.read_text()[-2000:]}"
        self._settings["listenPort"] = found[1]

    def signal(self, number: signal.Signals) -> None:
        self._server.process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self._server.process.wait)
        self._server.stdout.close()

    async def stop(self) -> int:
        return await asyncio.to_thread(self._server.stop)


class RoleProcess:
    """A process of a role. Its lives are numbered: sender-1.1, sender-1.2."""

    def __init__(self, name: str, scene: Scene) -> None:
        self._name = name
        self._scene = scene
        self._lives = 0

    async def start(self) -> None:
        self._lives += 1
        name = f"{self._name}.{self._lives}"
        self.process: ForkServerProcess = multiprocessing.get_context("forkserver").Process(
            target=roles.main, args=(self._name.partition("-")[0], self._scene, name), name=name
        )
        self.process.start()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        self.process.kill()
        await until(lambda: self.process.exitcode is not None, STOP_S)

    async def stop(self) -> int | None:
        """End it as a service manager would: None if it had to be killed."""
        if self.process.exitcode is None:
            self.process.terminate()
        try:
            await until(lambda: self.process.exitcode is not None, STOP_S)
        except TimeoutError:
            await self.kill()
            return None
        return self.process.exitcode


class DatabaseProcess:
    """A database or Redis, which never ends cleanly."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self.signal = server.signal

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.crash)

    stop = kill


class System:
    """All processes of a run by name, and the proxy between the broker and its clients."""

    def __init__(self, options: Options, scene: Scene, broker: RucolaServer, proxy: Proxy) -> None:
        self.options = options
        self.scene = scene
        self.broker = broker
        self.proxy = proxy
        self.roles = {name: RoleProcess(name, scene) for kind in KINDS for name in kind}
        self.processes: dict[str, RucolaServer | RoleProcess | DatabaseProcess] = {"broker": broker, **self.roles}

    @property
    def store(self) -> Path:
        return self.scene.directory / "store"

    async def create_topic(self) -> None:
        """Create the topic as soon as the broker allows it, not through the proxy."""
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)

        async def is_created() -> bool:
            try:
                async with AdminClient(self.scene.namesrv) as admin:
                    await admin.topics.create_or_update(self.broker.address, config)
            except MQError:
                return False
            return True

        await until(is_created, 30)

    async def stop(self, names: tuple[str, ...]) -> list[str]:
        """Stop roles; return findings about those that did not end well."""
        ended = [name for name in names if self.roles[name].process.exitcode is not None]
        codes = await asyncio.gather(*(self.roles[name].stop() for name in names))
        return [f"{name} ended by itself" for name in ended] + [
            f"{name} ended with {code} instead of 0; its log is {name}.*.log"
            for name, code in zip(names, codes, strict=True)
            if code not in (0, -signal.SIGTERM)  # the latter if it had only just been started
        ]


@asynccontextmanager
async def system(directory: Path, options: Options) -> AsyncIterator[System]:
    """Start everything in `directory`; end it with the block."""
    (directory / "ledgers").mkdir(parents=True)
    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())

        def serve(kind: str) -> DatabaseServer:
            user, start = STARTS[kind]
            return servers.enter_context(serving(kind, server_user(user), start))

        async def start(name: str, **settings: str) -> RucolaServer:
            server = RucolaServer(name, directory, **settings)
            await server.start()
            stack.push_async_callback(server.kill)
            return server

        database = None if options.database == "sqlite" else await asyncio.to_thread(serve, options.database)
        redis = await asyncio.to_thread(serve, "redis")
        namesrv = await start("namesrv")
        broker = await start("broker", **BROKER, namesrvAddr=namesrv.address, storePathRootDir=str(directory / "store"))
        proxy = Proxy(broker.address, host=PROXY_HOST, port=int(broker.address.rpartition(":")[2]))
        await stack.enter_async_context(proxy)
        urls = await asyncio.to_thread(_create_databases, directory, database)
        scene = Scene(*urls, namesrv.address, redis.url, directory, options)
        multiprocessing.get_context("forkserver").set_forkserver_preload([roles.__name__])
        running = System(options, scene, broker, proxy)
        running.processes |= {"namesrv": namesrv, "redis": DatabaseProcess(redis)}
        if database is not None:
            running.processes["database"] = DatabaseProcess(database)
        await running.create_topic()
        for role in running.roles.values():
            await role.start()
            stack.push_async_callback(role.kill)
        yield running


def _create_databases(directory: Path, server: DatabaseServer | None) -> list[str]:
    """Create the database with the stubs and that of the group `stock`; return their URLs."""
    if server is None:
        urls = [f"sqlite:///{directory / name}.db" for name in ("shop", "stock")]
    else:
        engine = create_engine(server.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text("CREATE DATABASE stock"))
        urls = [server.url, engine.url.set(database="stock").render_as_string(hide_password=False)]
        engine.dispose()
    for url in urls:
        engine = engine_of(url)
        with engine.begin() as connection:
            migration.init(connection, TABLES)
        metadata.create_all(engine)
        engine.dispose()
    return urls
