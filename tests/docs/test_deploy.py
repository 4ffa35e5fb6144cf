"""The files in deploy/ agree with the program: keys, commands, ports, users, and what an image is built from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from rucola import settings
from rucola.broker.config import BrokerConfig, from_properties
from rucola.namesrv.config import NamesrvConfig
from support.documentation import check_command

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "deploy" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((REPOSITORY / "deploy" / "kubernetes" / "rucola.yaml").read_text(encoding="utf-8"))
)
CONTAINERS = [
    container
    for item in OBJECTS
    if item["kind"] == "StatefulSet"
    for container in item["spec"]["template"]["spec"]["containers"]
]
BROKER = BrokerConfig()
PORTS = {
    "namesrv": {NamesrvConfig().listen_port},
    "broker": {
        BROKER.listen_port, BrokerConfig.vip_port(BROKER.listen_port), BROKER.ha_listen_port,
        BROKER.metrics_prom_exporter_port,
    },
}  # fmt: skip


def broker_confs() -> list[str]:
    return [
        (DOCKER / "broker.conf").read_text(encoding="utf-8"),
        *(item["data"]["broker.conf"] for item in OBJECTS if item["kind"] == "ConfigMap"),
    ]


@pytest.mark.parametrize("text", broker_confs())
def test_every_key_of_a_configuration_file_has_an_effect(text: str) -> None:
    _, store, unknown = from_properties(settings.parse(text))
    assert unknown == []
    assert str(store.store_path_root_dir).startswith("/var/lib/rucola/")


def test_commands_exist() -> None:
    commands = [service["command"] for service in SERVICES.values() if "command" in service]
    commands += [container["args"] for container in CONTAINERS]
    assert len(commands) == 6
    for command in commands:
        check_command("rucola " + " ".join(command).replace(";", ","))


def test_ports_are_the_defaults() -> None:
    exposed = {int(port) for port in re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[1].split()}  # type: ignore[index]
    assert exposed == PORTS["namesrv"] | PORTS["broker"]
    for container in CONTAINERS:
        assert {port["containerPort"] for port in container["ports"]} == PORTS[container["name"]]
        assert container["readinessProbe"]["tcpSocket"]["port"] in PORTS[container["name"]]


def test_containers_run_as_the_user_of_the_image() -> None:
    (uid,) = set(re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE))
    assert f"--uid {uid}" in DOCKERFILE
    for item in OBJECTS:
        if item["kind"] == "StatefulSet":
            assert item["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(uid)


@pytest.mark.slow
def test_the_image_is_built_from_files_that_suffice(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            path = REPOSITORY / line[1:]
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, source / path.name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"rucola/cli/main.py", "rucola/py.typed"} <= names
    assert not any(name.startswith("tests/") for name in names)
