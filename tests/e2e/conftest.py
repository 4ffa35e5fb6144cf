"""The clients, installed, and servers as a user starts them."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rucola.store.tools.check import check
from support.client_programs import PROGRAMS, Client
from support.npm import installed_by_npm
from support.once import made_once
from support.servers import server


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_by_npm(PROGRAMS / "ali_ons", tmp_path_factory)


@pytest.fixture(scope="session")
def rocketmq_nodejs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_by_npm(PROGRAMS / "rocketmq_nodejs", tmp_path_factory)


VERSIONS = ("5.1.2", "5.1.1")
"""Of the client of RocketMQ 5 for Python; the first is in the lock of the dependencies."""


@pytest.fixture(scope="session")
def rocketmq_v5(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The interpreters of environments with the client, by its version."""
    environments = made_once(tmp_path_factory, "rocketmq_v5", install_rocketmq_v5)
    return {version: environments / version / "bin" / "python" for version in VERSIONS}


def install_rocketmq_v5(environments: Path) -> None:
    dependencies = ""
    for version, lock in zip(VERSIONS, ("requirements.lock", "requirements-5.1.1.lock"), strict=True):
        directory = environments / version
        venv.create(directory)
        python = directory / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
        options = ["--quiet", "--no-compile", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        done = subprocess.run([*pip, *options, "-r", PROGRAMS / "rocketmq_v5" / lock], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.fail(f"pip could not install rocketmq-python-client {version}:\n{done.stderr[-2000:]}")
        packages = sysconfig.get_path("purelib", vars={"base": str(directory)})
        (Path(packages) / "dependencies.pth").write_text(f"{dependencies}\n")
        dependencies = packages  # the second version finds them in the first one's environment


@contextmanager
def standalone(path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a server with SQL filters and short delays: level 2 is two seconds, all others are one."""
    conf = "messageDelayLevel=1s 2s 1s 1s\nenablePropertyFilter=true\n"
    (path / "broker.conf").write_text(conf, encoding="utf-8")
    options = ("--namesrv-port", "0", "--broker-port", "0", "-c", path / "broker.conf")
    with server("standalone", "--store", path / "store", *options, log=path / "log") as running:
        yield running.addresses()
        assert running.stop() == 0
    assert check(path / "store") == []


@pytest.fixture(scope="module")
def ali_ons(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("e2e")
    with standalone(path) as addresses:
        yield Client("node", installed, *addresses, path)


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("e2e_cpp")
    with standalone(path) as addresses:
        yield Client(sys.executable, PROGRAMS / "cpp", *addresses, path)
