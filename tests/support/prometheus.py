"""A Prometheus that scrapes what a test names, with the rules of deploy/prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.ports import HOST, free_ports

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
MISSING = "the tests of alerts need Prometheus: install prometheus, or run `.ci/setup prometheus` as root, which does"


def programs() -> tuple[str, str]:
    """The paths of prometheus and promtool."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    assert found[0] is not None, MISSING
    assert found[1] is not None, MISSING
    return found[0], found[1]


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        data = await asyncio.to_thread(self._get, "alerts")
        return {one["labels"]["alertname"] for one in data.get("alerts", []) if one["state"] == "firing"}

    async def is_scraping(self, count: int) -> bool:
        targets = (await asyncio.to_thread(self._get, "targets")).get("activeTargets", [])
        return len([one for one in targets if one["health"] == "up"]) == count

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/api/v1/{path}", timeout=5) as response:
                data: dict[str, Any] = json.load(response)["data"]
                return data
        except OSError:
            return {}  # it starts


@contextmanager
def running_prometheus(path: Path, ports: Mapping[str, list[int]]) -> Iterator[Prometheus]:
    """Scrape the ports of each job twice a second, and let alerts fire without delay."""
    rules = re.sub(r"( +)for: .*", r"\1for: 0s", (DIRECTORY / "alerts.yml").read_text())
    (path / "alerts.yml").write_text(rules)
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"{HOST}:{port}" for port in of_job]}]}
        for job, of_job in ports.items()
    ]
    often = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"}
    config = {"global": often, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
    (path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    (port,) = free_ports(1)
    with (path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [programs()[0], f"--config.file={path}/prometheus.yml", f"--storage.tsdb.path={path}/tsdb",
             f"--web.listen-address={HOST}:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)
