"""The client, installed from its registry for this run, and a server as a user starts it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.javascript import PROGRAMS, AliOns
from servers import server


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the programs and, beside them, the client that the lock names."""
    directory = tmp_path_factory.mktemp("ali_ons") / "programs"
    shutil.copytree(PROGRAMS, directory, ignore=shutil.ignore_patterns("node_modules"))
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.fail("node and npm are not on PATH: run .ci/setup node, or install nodejs and npm by hand")
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"npm could not install ali-ons, which needs a registry that answers:\n{done.stderr[-2000:]}")
    return directory


@pytest.fixture(scope="module")
def ali_ons(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AliOns]:
    """The client and a server with SQL filters and short delays: level 2 is two seconds, all others are one."""
    path = tmp_path_factory.mktemp("e2e")
    conf = "messageDelayLevel=1s 2s 1s 1s\nenablePropertyFilter=true\n"
    (path / "broker.conf").write_text(conf, encoding="utf-8")
    options = ("--namesrv-port", "0", "--broker-port", "0", "-c", path / "broker.conf")
    with server("standalone", "--store", path / "store", *options, log=path / "log") as running:
        yield AliOns(installed, *running.addresses(), path)
        assert running.stop() == 0
