"""The order service of examples/ as its users run it: three programs that can be killed and started again."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from support.ports import HOST
from support.processes import wait_for
from support.servers import READY, RUCOLA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = [sys.executable, "-m"]
LISTENING = re.compile(rf"Uvicorn running on http://{HOST}:(\d+)")
QUICK_RETRIES = " ".join(["1s"] * 18)
REQUEST_TIMEOUT_S = 60


class Program:
    """A process that is ready when a pattern is in its output; `starts` counts how often it was started."""

    def __init__(self, command: list[str], ready: re.Pattern[str], log: Path, environment: dict[str, str]) -> None:
        self.command, self.environment = command, environment
        self.starts = 0
        self._ready, self._log = ready, log

    def start(self) -> re.Match[str]:
        """Start it and wait until it is ready; return the match in its output."""
        self.starts += 1
        with self._latest_log().open("wb") as output:
            self.process = subprocess.Popen(
                self.command, stdout=output, stderr=output, env={**os.environ, **self.environment}
            )
        wait_for(lambda: self._ready.search(self.output()) is not None, self.process)
        found = self._ready.search(self.output())
        assert found
        return found

    def output(self) -> str:
        """All that it has printed and logged since its latest start."""
        return self._latest_log().read_text()

    def _latest_log(self) -> Path:
        return self._log.with_suffix(f".{self.starts}.log")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to stop, as a supervisor does; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class OrderService:
    """Broker, web process and consumer process in a directory, on one database."""

    def __init__(self, directory: Path, database: str, **settings: str) -> None:
        self.store = directory / "store"
        self.engine = create_engine(database)
        self.serving = asyncio.Event()
        """Set while the web process accepts connections."""
        config = directory / "broker.conf"
        config.write_text(f"messageDelayLevel={QUICK_RETRIES}\n")
        self._environment = {"ORDERS_DATABASE": database, "PYTHONPATH": str(EXAMPLES), "ORDERS_LEASE": "2"} | settings
        broker = [*RUCOLA, "standalone", "--store", str(self.store), "-c", str(config)]
        ports = ["--namesrv-port", "0", "--broker-port", "0"]
        self.broker = Program([*broker, *ports], READY, directory / "broker", {})
        # The address of the name server is known when it has started once; from then on its ports are fixed.
        namesrv, address = self.broker.start().groups()[:2]
        self.broker.command = [*broker, "--namesrv-port", namesrv.split(":")[1], "--broker-port", address.split(":")[1]]
        self._environment["NAMESRV_ADDR"] = self.namesrv = namesrv
        app = [*PYTHON, "uvicorn", "--factory", "order_service.app:create_app", "--port", "0"]
        self.app = Program(app, LISTENING, directory / "app", self._environment)
        billing = [*PYTHON, "order_service.billing"]
        self.billing = Program(billing, re.compile("billing is ready"), directory / "billing", self._environment)
        self.programs = [self.broker, self.app, self.billing]
        subprocess.run(
            [*PYTHON, "order_service.tables"], check=True, capture_output=True, env={**os.environ, **self._environment}
        )

    async def start_app(self) -> None:
        self._port = int((await asyncio.to_thread(self.app.start))[1])
        self.serving.set()

    async def kill(self, program: Program) -> None:
        """Kill a program as `kill -9` does."""
        if program is self.app:
            self.serving.clear()
        await asyncio.to_thread(program.kill)

    async def restart(self, program: Program) -> None:
        if program is self.app:
            await self.start_app()
        else:
            await asyncio.to_thread(program.start)

    def close(self) -> None:
        """End what still runs."""
        self.engine.dispose()
        for program in self.programs:
            if program.starts and program.process.poll() is None:
                program.kill()

    async def post(self, key: str, item: str = "pizza", cents: int = 950) -> tuple[int, Any]:
        """Post an order, again and again until there is a response that is no server error: status and body."""
        while True:
            await self.serving.wait()
            process = self.app.process
            try:
                status, body = await self.request("POST", "/orders", key, {"item": item, "cents": cents})
            except (OSError, http.client.HTTPException):
                was_killed = process is not self.app.process or not self.serving.is_set()
                assert was_killed, self.app.output()
                continue
            if status < 500:
                return status, json.loads(body)

    async def get(self, path: str) -> Any:
        """Get a resource that is there."""
        status, body = await self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    async def request(self, method: str, path: str, key: str | None = None, body: Any = None) -> tuple[int, str]:
        return await asyncio.to_thread(self._request, method, path, key, body)

    def _request(self, method: str, path: str, key: str | None, body: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=REQUEST_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key is not None else {})
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def rows(self, query: str) -> list[Any]:
        """The first column of a query's result."""
        with self.engine.connect() as connection:
            return list(connection.scalars(text(query)))
