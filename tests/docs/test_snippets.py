"""Snippets of pages that are no tutorials: each runs against a real broker, or is listed with the reason why not."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import prometheus_client
import pytest

from rucola.admin import AdminClient
from rucola.client import ConsumeFromWhere, MessageExt, sync
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document, check_command
from support.installation import REPOSITORY
from support.reader import Reader

EXECUTED = {
    "README.md": "tests/test_readme.py",
    "README.zh.md": "tests/test_readme.py",
    "docs/access-control.md": "tests/docs/test_tutorials.py",
    "docs/backup.md": "tests/cli/test_store_backup.py",
    "docs/client.md": "tests/client/test_examples.py",
    "docs/cluster.md": "tests/cli/test_cluster.py",
    "docs/lake.md": "tests/spark/test_archive_pages.py",
    "docs/metrics.md": "tests/docs/test_snippets.py",
    "docs/migration.md": "tests/client/test_migration_page.py",
    "docs/mqadmin.md": "tests/docs/test_snippets.py",
    "docs/pipeline-archive.md": "tests/spark/test_archive_pages.py",
    "docs/pipeline-audit.md": "tests/spark/test_archive_pages.py",
    "docs/pipeline-rebuild.md": "tests/spark/test_archive_pages.py",
    "docs/pipeline-reconcile.md": "tests/spark/test_reconcile.py",
    "docs/pipeline-replay.md": "tests/spark/test_archive_pages.py",
    "docs/pipeline-search.md": "tests/spark/test_archive_pages.py",
    "docs/reliable.md": "tests/reliable/test_docs.py",
    "docs/reliable-recipes.md": "tests/reliable/test_recipes.py",
    "docs/router.md": "tests/client/test_router_page.py",
    "docs/security.md": "tests/docs/test_security.py",
    "docs/spark.md": "tests/spark/test_page.py",
    "docs/spark-tour.md": "tests/spark/test_tour.py",
    "docs/store.md": "tests/store/test_page.py",
    "docs/testing.md": "tests/testing/test_plugin.py",
    "docs/tutorials/first-message.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/hung-consumer.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/opentelemetry.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/pair.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/rocketmq-5.md": "tests/e2e/test_rocketmq_v5_tutorial.py",
    "docs/tutorials/search.md": "tests/docs/test_tutorials.py",
    "examples/order_service/README.md": "tests/reliable/test_docs.py",
}
"""The test of each page."""
NOT_EXECUTED = {
    "docs/simulation.md": "the commands simulate for long; tests/simulation runs some seeds",
    "docs/upgrade.md": "the commands ask a broker at its default port; tests/cli/test_upgrade.py follows the order",
    "docs/console.md": "the servers have their default ports; tests/console starts them on free ones",
    "docs/deployment.md": "Docker needs its daemon; tests/docs/test_deploy.py builds from the same files",
    "docs/grpc.md": "the server has its default ports, and the client is installed by tests/e2e",
    "docs/lake.md": "the commands name directories of a server",
    "docs/lake-catalogs.md": "the commands need an object store and a catalog",
    "docs/metrics.md": "the last console block starts servers on their default ports",
    "docs/mqadmin.md": "the completion of commands is for the reader's own shell",
    "docs/pipeline-archive.md": "the commands name directories of a server",
    "docs/pipeline-audit.md": "as above",
    "docs/pipeline-rebuild.md": "as above",
    "docs/pipeline-reconcile.md": "as above",
    "docs/pipeline-replay.md": "as above",
    "docs/pipeline-search.md": "as above",
    "docs/spark.md": "spark-submit and venv-pack need a cluster",
}
"""Pages with console blocks that are not executed, and why. Their commands of `rucola` exist with all their options."""
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
PAGES = ["README.md", "README.zh.md", "examples/order_service/README.md"]
PAGES += [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "docs").rglob("*.md"))]


def test_every_page_with_snippets_has_a_test() -> None:
    with_snippets = {
        page
        for page in PAGES
        if re.search(r"^```(python|console)$|^\$ rucola ", Document.read(page).text, re.MULTILINE)
    }
    listed = EXECUTED.keys() | NOT_EXECUTED.keys()
    assert with_snippets - listed == set(), "add the page to EXECUTED with its test, or to NOT_EXECUTED with a reason"
    assert listed - with_snippets == set(), "these pages have no snippets"
    for page, module in EXECUTED.items():
        source = (REPOSITORY / module).read_text(encoding="utf-8")
        # By its name, or by the one that a parameter of the test inserts.
        assert Path(page).name in source or Path(page).stem.removeprefix("pipeline-") in source, (page, module)


@pytest.mark.parametrize("page", NOT_EXECUTED)
def test_commands_that_are_not_executed_exist(page: str) -> None:
    for line in Document.read(page).rucola_commands():
        check_command(line)


def test_the_metrics_of_the_page_are_exported(rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    (program,) = Document.read("docs/metrics.md").texts("python")
    consumer = sync.PushConsumer("g")
    consumer.subscribe("T")
    with sync.Producer("p") as producer, consumer:
        producer.send(sync.Message("T", b"x"))
        names: dict[str, Any] = {"producer": producer, "consumer": consumer}
        call = "prometheus_client.start_http_server"
        exec(
            compile(
                program.replace(f"{call}(8000)", f"server, thread = {call}(0, registry=prometheus_client.REGISTRY)"),
                "metrics.md",
                "exec",
            ),
            names,
        )
        try:
            with urlopen(f"http://127.0.0.1:{names['server'].server_port}/metrics") as response:
                assert "rocketmq_client_send_msg_total{" in response.read().decode()
        finally:
            names["server"].shutdown()
            names["thread"].join()
            names["server"].server_close()


@pytest.mark.slow
def test_the_snippets_of_the_administration_page_run(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """On a group `billing` with a dead letter."""
    page = Document.read("docs/mqadmin.md")
    rocketmq.send("Flights", b"x", keys="N14228")
    with sync.PushConsumer("billing", consume_from=FIRST, max_reconsume_times=0) as consumer:
        consumer.subscribe("Flights")
        consumer.listen(fail)
        rocketmq.wait_for_dead_letters("billing")
        rocketmq.wait_until_consumed("billing", "Flights")
    (program,) = page.texts("python")
    source = program.replace("127.0.0.1:9876", rocketmq.namesrv)
    source = f"async def run():\n{textwrap.indent(source, '    ')}\n    return stats, result"
    names: dict[str, Any] = {"AdminClient": AdminClient}
    exec(compile(source, "mqadmin.md", "exec"), names)
    stats, result = asyncio.run(names["run"]())
    assert len(stats.offset_table) > 0
    assert [message.body for message in result.messages] == [b"x"]
    with Reader(tmp_path, {"127.0.0.1:9876": rocketmq.namesrv}) as reader:
        reader.type("rucola reliable init --database sqlite:///shop.db")
        reader.follow(page.sections()["Dead letters"])
        assert len((tmp_path / "billing.jsonl").read_text().splitlines()) == 1
    assert len(rocketmq.messages("Flights")) == 2


def fail(message: MessageExt) -> None:
    raise ValueError(message.keys)
