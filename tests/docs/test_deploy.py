"""The files in deploy/ agree with the program: keys, commands, ports, users, and what an image is built from."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from rucola import __version__, settings
from rucola.broker.broker import Broker
from rucola.broker.config import BrokerConfig, from_properties
from rucola.namesrv import config as namesrv_config
from rucola.namesrv.config import NamesrvConfig
from rucola.namesrv.server import Namesrv
from rucola.protocol.route import vip_port
from rucola.proxy import config as proxy_config
from rucola.proxy.config import ProxyConfig
from rucola.remoting.metrics_config import MetricsExporterType
from rucola.store.config import StoreConfig
from rucola.store.tools.check import check
from support.documents import check_command
from support.metrics import http_request

REPOSITORY = Path(__file__).parents[2]
UNITS = REPOSITORY / "deploy" / "systemd"
DOCKER = REPOSITORY / "deploy" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
MANIFESTS = sorted((REPOSITORY / "deploy" / "kubernetes").glob("*.yaml"))
OBJECTS: list[dict[str, Any]] = [
    item for path in MANIFESTS for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
WORKLOADS = [item for item in OBJECTS if item["kind"] in ("StatefulSet", "Deployment")]
PODS = [item["spec"]["template"] for item in WORKLOADS]
CONTAINERS = [container for pod in PODS for container in pod["spec"]["containers"]]
BROKER = BrokerConfig()
PORTS = {
    "namesrv": {NamesrvConfig().listen_port},
    "broker": {
        BROKER.listen_port, vip_port(BROKER.listen_port), BROKER.ha_listen_port,
        BROKER.grpc_server_port, BROKER.metrics_prom_exporter_port,
    },
    "proxy": {ProxyConfig().grpc_server_port},
}  # fmt: skip


def files(name: str) -> list[str]:
    """The configuration files of this name: that of compose.yaml, and those in ConfigMaps."""
    maps = [item["data"] for item in OBJECTS if item["kind"] == "ConfigMap"]
    return [(DOCKER / name).read_text(encoding="utf-8"), *(data[name] for data in maps if name in data)]


@pytest.mark.parametrize("text", files("broker.conf"))
def test_every_key_of_a_configuration_file_has_an_effect(text: str) -> None:
    member = {"brokerId": "1"} if "etcdEndpoints" in text else {}  # as the command of its container adds
    _, store, unknown = from_properties(settings.parse(text) | member)
    assert unknown == []
    assert str(store.store_path_root_dir).startswith("/var/lib/rucola/")


@pytest.mark.parametrize("text", [text for text in files("broker.conf") if "etcdEndpoints" not in text])
async def test_a_broker_starts_with_a_file_and_serves_other_machines(text: str, tmp_path: Path) -> None:
    ports = {"listenPort": "0", "haListenPort": "0", "metricsPromExporterPort": "0"}
    settled = settings.parse(text) | ports | {"storePathRootDir": str(tmp_path / "store")}
    config, store, _ = from_properties(settled | {"mappedFileSizeCommitLog": "65536"})
    async with Broker(config, store):
        assert config.bind_address == config.metrics_prom_exporter_host == "0.0.0.0"


@pytest.mark.parametrize("text", files("namesrv.conf"))
async def test_a_name_server_starts_with_a_file_and_serves_other_machines(text: str) -> None:
    config, unknown = namesrv_config.from_properties(settings.parse(text))
    assert unknown == []
    async with Namesrv(port=0, config=config) as server:
        assert server.host == "0.0.0.0"


def test_the_file_of_the_proxy_serves_other_machines() -> None:
    (text,) = [item["data"]["proxy.conf"] for item in OBJECTS if "proxy.conf" in item.get("data", {})]
    config = proxy_config.from_properties(settings.parse(text))
    assert (config.bind_address, config.insecure) == ("0.0.0.0", True)


def test_the_file_for_one_container_serves_this_machine() -> None:
    config, _, unknown = from_properties(settings.parse((DOCKER / "standalone.conf").read_text(encoding="utf-8")))
    assert (config.bind_address, config.broker_ip1, config.insecure, unknown) == ("0.0.0.0", "127.0.0.1", True, [])


def test_published_ports_are_of_this_machine_only() -> None:
    """Without TLS and access control nothing may be published to other machines."""
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert "-p 127.0.0.1:" in DOCKERFILE
    assert not re.search(r"-p \d", DOCKERFILE.replace("-p 127.0.0.1:", ""))


def test_only_pods_with_a_label_reach_the_servers() -> None:
    protected: set[str] = set()
    for policy in [item["spec"] for item in OBJECTS if item["kind"] == "NetworkPolicy"]:
        selector = policy["podSelector"]
        protected |= set(selector["matchLabels"].values() if "matchLabels" in selector else app_values(selector))
        (rule,) = policy["ingress"]
        peers, clients = [source["podSelector"] for source in rule["from"]]
        assert clients == {"matchLabels": {"rucola-client": "true"}}
        assert set(app_values(peers)) <= {pod["metadata"]["labels"]["app"] for pod in PODS}
    assert protected == {pod["metadata"]["labels"]["app"] for pod in PODS}


def app_values(selector: dict[str, Any]) -> list[str]:
    (expression,) = selector["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("app", "In")
    return list(expression["values"])


def test_commands_exist() -> None:
    commands = [service["command"] for service in SERVICES.values() if "command" in service]
    commands += [container["args"] for container in CONTAINERS if "args" in container]
    assert len(commands) == 7
    for command in commands:
        check_command("rucola " + " ".join(command).replace(";", ","))


@pytest.mark.parametrize("number", [0, 2])
def test_members_of_a_group_have_ids_of_their_own(tmp_path: Path, number: int) -> None:
    (container,) = [container for container in CONTAINERS if "command" in container]
    *shell, script = container["command"]
    assert shell == ["sh", "-c"]
    (text,) = [text for text in files("broker.conf") if "etcdEndpoints" in text]
    (tmp_path / "given.conf").write_text(text)
    made = tmp_path / "made.conf"
    script = script.replace("/etc/rucola/broker.conf", str(tmp_path / "given.conf")).replace(
        "/tmp/broker.conf", str(made)
    )
    before, _, program = script.partition("&& exec ")
    check_command(program)
    environment = {"HOSTNAME": f"broker-a-{number}", "PATH": os.environ["PATH"]}
    subprocess.run([*shell, before], check=True, env=environment)
    config, _, unknown = from_properties(settings.read(made))
    assert (config.broker_id, config.coordination.is_enabled, unknown) == (number + 1, True, [])


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda item: item["metadata"]["name"])
def test_names_selectors_and_ports_agree(workload: dict[str, Any]) -> None:
    spec, pod = workload["spec"], workload["spec"]["template"]
    labels = pod["metadata"]["labels"]
    own = {"app": labels["app"]}
    assert spec["selector"] == {"matchLabels": own}
    (service,) = [item for item in OBJECTS if item["kind"] == "Service" and item["spec"]["selector"] == own]
    assert spec.get("serviceName", service["metadata"]["name"]) == service["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    ports = {port["containerPort"] for port in container["ports"]}
    assert {port["port"] for port in service["spec"]["ports"]} == ports
    (budget,) = [item["spec"] for item in OBJECTS if item["kind"] == "PodDisruptionBudget"
                 and item["spec"]["selector"] == {"matchLabels": own}]  # fmt: skip
    assert 0 < budget["maxUnavailable"] < spec["replicas"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert apart["labelSelector"] == spread["labelSelector"] == {"matchLabels": own}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]} | set(claimed)
    (name,) = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
    assert name in {item["metadata"]["name"] for item in OBJECTS if item["kind"] == "ConfigMap"}


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container["name"])
def test_containers_may_do_little_and_have_a_tagged_image(container: dict[str, Any]) -> None:
    assert container["image"] == f"rucola:{__version__}"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


async def test_probes_of_brokers_are_answered(tmp_path: Path) -> None:
    """Liveness also before the store is open, so that no recovery is interrupted."""
    probes = [container[f"{kind}Probe"]["httpGet"] for container in CONTAINERS if container["name"] == "broker"
              for kind in ("startup", "liveness", "readiness")]  # fmt: skip
    assert {probe["port"] for probe in probes} == {BROKER.metrics_prom_exporter_port}
    config = BrokerConfig(
        broker_name="b", bind_address="127.0.0.1", listen_port=0, ha_listen_port=0,
        metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_port=0,
    )  # fmt: skip
    broker = Broker(config, StoreConfig(tmp_path / "store", mapped_file_size_commit_log=65536))
    await broker.open()
    answered = {}
    for is_serving in (False, True):
        for probe in probes:
            head, _ = await http_request(
                config.metrics_prom_exporter_port, f"GET {probe['path']} HTTP/1.1\r\n\r\n".encode()
            )
            answered[probe["path"], is_serving] = head.split()[1]
        if not is_serving:
            await broker.start()
    await broker.stop()
    assert answered == {
        ("/live", False): b"200", ("/ready", False): b"503", ("/live", True): b"200", ("/ready", True): b"200"
    }  # fmt: skip
    assert check(tmp_path / "store") == []


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    validate = shutil.which("kubernetes-validate")
    if validate is None:
        pytest.skip("no kubernetes-validate: pip install kubernetes-validate, which has 108 MB")
    done = subprocess.run([validate, "--strict", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_job_and_no_probe_asks_for_the_health_of_the_cluster() -> None:
    probes = [value for container in CONTAINERS for key, value in container.items() if key.endswith("Probe")]
    assert probes
    assert not [probe for probe in probes if "exec" in probe]
    manifest = (REPOSITORY / "deploy" / "kubernetes" / "health.yaml").read_text(encoding="utf-8")
    job = yaml.safe_load(manifest)["spec"]["jobTemplate"]["spec"]
    assert job["backoffLimit"] == 0, "a failure is seen at once"
    template = job["template"]
    assert template["metadata"]["labels"] == {"rucola-client": "true"}
    (container,) = template["spec"]["containers"]
    test_containers_may_do_little_and_have_a_tagged_image(container)
    check_command("rucola " + " ".join(container["args"]).replace(";", ","))


def test_ports_are_the_defaults() -> None:
    exposed = {int(port) for port in re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[1].split()}  # type: ignore[index]
    assert exposed == PORTS["namesrv"] | PORTS["broker"]
    for container in CONTAINERS:
        assert {port["containerPort"] for port in container["ports"]} == PORTS[container["name"]]
        for kind in ("readiness", "liveness"):
            ((_, target),) = [item for item in container[f"{kind}Probe"].items() if isinstance(item[1], dict)]
            assert target["port"] in PORTS[container["name"]]


def test_containers_run_as_the_user_of_the_image() -> None:
    users = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert [user for user, after in pairwise(users) if after == "0"] == [users[0]], "root only between two others"
    (uid,) = {user for user in users if user != "0"}
    assert users[-1] == uid
    assert f"--uid {uid}" in DOCKERFILE
    assert {pod["spec"]["securityContext"]["runAsUser"] for pod in PODS} == {int(uid)}


def unit(name: str) -> dict[str, list[str]]:
    """The values of each key of a unit of systemd."""
    values: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


@pytest.mark.parametrize("name", ["rucola-namesrv.service", "rucola-broker@.service", "rucola-proxy.service"])
def test_units_run_commands_that_exist_and_are_valid(name: str, tmp_path: Path) -> None:
    values = unit(name)
    assert values["Type"] == ["notify"], "the server reports when it is ready"
    (start,) = values["ExecStart"]
    program, *arguments = shlex.split(start)
    assert program == "/opt/rucola/bin/rucola"
    check_command(shlex.join(["rucola", *arguments]))
    if systemd_analyze := shutil.which("systemd-analyze"):  # on machines with systemd
        # An instance of the template, with a program that exists on this machine.
        copy = tmp_path / name.replace("@", "@broker-a")
        copy.write_text((UNITS / name).read_text(encoding="utf-8").replace(program, sys.executable))
        done = subprocess.run([systemd_analyze, "verify", copy], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["rucola-namesrv.service", "rucola-broker@.service", "rucola-proxy.service"])
def test_units_expose_little(name: str, tmp_path: Path) -> None:
    """Below 3 by systemd's own measure; the same number of descriptors everywhere."""
    nofile = {values["nofile"] for service in SERVICES.values() if (values := service.get("ulimits"))}
    assert {int(value) for value in unit(name)["LimitNOFILE"]} == nofile
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    copy = tmp_path / name.replace("@", "@broker-a")
    copy.write_text((UNITS / name).read_text(encoding="utf-8"))
    command = [systemd_analyze, "security", "--offline=true", "--threshold=30", copy]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_of_operation_installs_what_the_units_expect() -> None:
    page = (REPOSITORY / "docs" / "operation.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```\n(python3 -m venv .*?)^```", page, re.MULTILINE | re.DOTALL)
    for name in ("rucola-namesrv.service", "rucola-broker@.service"):
        values = unit(name)
        program = values["ExecStart"][0].split()[0]
        assert f"{Path(program).parent.parent}/bin/pip install" in commands
        assert f"useradd --system {values['User'][0]}\n" in commands
        assert re.search(rf"enable --now .*\b{name.removesuffix('.service')}", commands)
    for configuration in re.findall(r"-c (\S+)", " ".join(unit("rucola-namesrv.service")["ExecStart"])):
        assert f"> {configuration}\n" in commands


def build_context() -> list[Path]:
    """The files that .dockerignore leaves: of its lines, the last one that matches a file or a folder above decides."""
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [(not line.startswith("!"), line.lstrip("!")) for line in lines if line and not line.startswith("#")]
    tops = {name.split("/")[0] for is_excluded, name in rules if not is_excluded}
    found = []
    for top in sorted(tops):
        for path in [REPOSITORY / top, *(REPOSITORY / top).rglob("*")]:
            relative = path.relative_to(REPOSITORY)
            named = [relative, *relative.parents][:-1]
            matching = [
                is_excluded
                for is_excluded, pattern in rules
                if any(
                    one.match(pattern.removeprefix("**/")) if "**" in pattern else full(one, pattern) for one in named
                )
            ]
            if path.is_file() and not matching[-1]:
                found.append(relative)
    return found


def full(path: Path, pattern: str) -> bool:
    """Tell whether a pattern without ** matches a whole path."""
    return len(path.parts) == len(Path(pattern).parts) and path.match(pattern)


def build_stage() -> list[str]:
    """The instructions of the stage `build`, continued lines joined."""
    instructions = re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    begin = next(number for number, line in enumerate(instructions) if re.fullmatch(r"FROM \S+ AS build", line))
    end = next(number for number, line in enumerate(instructions) if number > begin and line.startswith("FROM"))
    return [line for line in instructions[begin:end] if line and not line.startswith("#")]


@pytest.mark.slow
def test_the_image_is_built_from_files_that_suffice(tmp_path: Path) -> None:
    """With the accelerator, from exactly the files that a build of the image has."""
    base, *_, copied, install = build_stage()
    assert not base.split()[1].endswith(("-slim", "-alpine")), "these images have no C compiler"
    assert copied == "COPY . /source"
    environment = dict(re.findall(r"(\w+)=(\S+) \S*pip install", install))
    assert environment == {"RUCOLA_SPEED": "1"}
    source = tmp_path / "source"
    for path in build_context():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / path, source / path)
    assert not list(source.rglob("*.so"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(pip, check=True, env=os.environ | environment)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        extension = archive.read("rucola/_speed.abi3.so")
    assert b"PyInit__speed" in extension
    assert {"rucola/cli/main.py", "rucola/py.typed"} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)
