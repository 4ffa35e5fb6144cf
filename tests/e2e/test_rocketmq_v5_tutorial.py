"""The tutorial with the client of RocketMQ 5 for Python does what it says."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from support.documents import Document
from support.reader import Reader


def test_the_tutorial_works_as_written(rocketmq_v5: dict[str, Path], tmp_path: Path) -> None:
    """From the first command after the installation; the client is that of an environment that tests/e2e installs."""
    client = sysconfig.get_path("purelib", vars={"base": str(rocketmq_v5["5.1.2"].parent.parent)})
    with Reader(tmp_path, PYTHONPATH=client) as reader:
        reader.follow(Document.read("docs/tutorials/rocketmq-5.md").after("Start a name server"))
        reader.interrupt("rucola standalone")
        reader.type("rucola store check store")
