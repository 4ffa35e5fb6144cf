"""A Prometheus that scrapes what a test names, with the rules of deploy/prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.ports import HOST, free_ports
from support.waiting import until

WATCH_INTERVAL_S = 0.2
DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
MISSING = "the tests of alerts need Prometheus: install prometheus, or run `.ci/setup prometheus` as root, which does"


def programs() -> tuple[str, str]:
    """The paths of prometheus and promtool."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    assert found[0] is not None, MISSING
    assert found[1] is not None, MISSING
    return found[0], found[1]


RANGE = "[10s]"
THRESHOLDS = {
    "rocketmq_slave_behind_seconds > 60": "rocketmq_slave_behind_seconds > 1",
    "> 3600\n": "> 60\n",
    "rocketmq_group_get_latency_by_storetime > 1800000": "rocketmq_group_get_latency_by_storetime > 1000",
    "rucola_reliable_relay_lag_seconds > 60": "rucola_reliable_relay_lag_seconds > 1",
    "> 6 * 3600 * 1000": "> 1000",
}
"""Durations in conditions, each in one rule, and what tests have instead."""


def alert_names() -> set[str]:
    return set(re.findall(r"alert: (\w+)", (DIRECTORY / "alerts.yml").read_text()))


def quick_rules() -> str:
    """The rules, with all durations shortened: those of ranges, and of thresholds; alerts fire at once."""
    rules = re.sub(r"( +)for: .*", r"\1for: 0s", (DIRECTORY / "alerts.yml").read_text())
    rules = re.sub(r"\[\d+m\]", RANGE, rules)
    for long, short in THRESHOLDS.items():
        assert rules.count(long) == 1, long
        rules = rules.replace(long, short)
    return rules


class Prometheus:
    def __init__(self, path: Path, port: int) -> None:
        self._path = path
        self._port = port
        self._targets: dict[str, list[int]] = {}
        self._firing: list[dict[str, str]] = []
        self._looked = asyncio.Condition()
        self.fired: set[str] = set()
        """Alerts that a test has seen fire for its fault."""
        self.cleared: set[str] = set()
        """Those that it has seen clear, after that."""

    async def scrape(self, job: str, port: int) -> str:
        """Scrape a port of this machine from now on, and return its label `instance` once it was."""
        self._targets.setdefault(job, []).append(port)
        text = json.dumps([{"targets": [f"{HOST}:{port}" for port in self._targets[job]]}])
        temporary = self._path / f"{job}.new"
        temporary.write_text(text)
        temporary.replace(self._path / f"{job}.json")
        instance = f"{HOST}:{port}"

        async def is_up() -> bool:
            targets = (await asyncio.to_thread(self._get, "targets")).get("activeTargets", [])
            return any(one["labels"]["instance"] == instance and one["health"] == "up" for one in targets)

        await until(is_up, 60)
        return instance

    async def fires(self, name: str, **labels: str) -> None:
        """Wait until an alert fires with these labels."""
        await self._wait(name, labels, is_firing=True)
        self.fired.add(name)

    async def clears(self, name: str, **labels: str) -> None:
        """Wait until none fires with these labels; one has to before."""
        assert name in self.fired
        await self._wait(name, labels, is_firing=False)
        self.cleared.add(name)

    async def _wait(self, name: str, labels: dict[str, str], *, is_firing: bool) -> None:
        wanted = labels | {"alertname": name}
        try:
            async with asyncio.timeout(60):
                async with self._looked:
                    await self._looked.wait_for(
                        lambda: any(wanted.items() <= one.items() for one in self._firing) == is_firing
                    )
        except TimeoutError:
            raise AssertionError(f"{wanted} {'does not fire' if is_firing else 'does not clear'}") from None

    async def watch(self) -> None:
        """Look at the alerts until this is cancelled."""
        while True:
            alerts = (await asyncio.to_thread(self._get, "alerts")).get("alerts")
            if alerts is not None:
                self._firing = [one["labels"] for one in alerts if one["state"] == "firing"]
                async with self._looked:
                    self._looked.notify_all()
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/api/v1/{path}", timeout=5) as response:
                data: dict[str, Any] = json.load(response)["data"]
                return data
        except OSError:
            return {}  # it starts


@contextmanager
def running_prometheus(path: Path) -> Iterator[Prometheus]:
    """A Prometheus with `quick_rules`, which scrapes twice a second what a test names."""
    path.mkdir()
    (path / "alerts.yml").write_text(quick_rules())
    config = (DIRECTORY / "prometheus.yml").read_text()
    jobs = [
        {"job_name": job, "file_sd_configs": [{"files": [f"{path}/{job}.json"], "refresh_interval": "1s"}]}
        for job in [*re.findall(r"job_name: ([\w-]+)", config), "node"]
    ]
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    quick = {"global": often, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
    (path / "prometheus.yml").write_text(json.dumps(quick))  # JSON is YAML
    (port,) = free_ports(1)
    with (path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [programs()[0], f"--config.file={path}/prometheus.yml", f"--storage.tsdb.path={path}/tsdb",
             f"--web.listen-address={HOST}:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Prometheus(path, port)
    finally:
        process.terminate()
        process.wait(30)
