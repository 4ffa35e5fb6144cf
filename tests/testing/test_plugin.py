"""The pytest plugin as its users have it: docs/testing.md runs, and what the fixtures promise holds."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.client.sync import Message, Producer, PushConsumer
from rucola.errors import ConfigError
from rucola.message.topics import SCHEDULE_TOPIC
from rucola.store.tools.check import check
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document

pytest_plugins = ["pytester"]

PAGE = Document.read("docs/testing.md")
PROGRAMS = PAGE.texts("python")


@pytest.mark.slow
def test_the_programs_of_the_page_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**{f"test_program_{number}": source for number, source in enumerate(PROGRAMS, 1)})
    result = pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:asyncio")
    result.assert_outcomes(passed=PAGE.text.count("\ndef test_"))


def test_every_test_has_a_broker_of_its_own_and_the_environment_back(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", "other:1")  # a developer's cluster, to which no test may send
    pytester.makepyfile(
        """
        import os
        import pytest

        addresses = set()

        @pytest.mark.parametrize("turn", [1, 2])
        def test_alone(rocketmq, turn):
            assert os.environ["NAMESRV_ADDR"] == os.environ["ROCKETMQ_NAMESRV"] == rocketmq.namesrv
            assert rocketmq.messages("T") == []
            rocketmq.send("T", b"body")
            addresses.add(rocketmq.store)

        def test_after():
            assert len(addresses) == 2
            assert "NAMESRV_ADDR" not in os.environ
            assert os.environ["ROCKETMQ_NAMESRV"] == "other:1"
        """
    )
    pytester.runpytest_inprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=3)


@pytest.mark.slow
def test_no_module_of_rucola_is_rewritten(pytester: pytest.Pytester) -> None:
    """pytest would rewrite all of them, since one is a plugin, and take twice the time for the import."""
    pytester.makepyfile(
        """
        import sys
        from importlib.machinery import ExtensionFileLoader, SourceFileLoader

        import rucola.client

        def test_loaders(rocketmq):
            names = [name for name in sys.modules if name.startswith("rucola.")]
            of_its_own = {"rucola.testing", "rucola.testing.plugin"}
            as_they_are = (SourceFileLoader, ExtensionFileLoader)
            rewritten = {name for name in names if type(sys.modules[name].__loader__) not in as_they_are}
            assert len(names) > 50
            assert rewritten <= of_its_own
        """
    )
    pytester.runpytest_subprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_the_nearest_marker_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.rocketmq(defaultTopicQueueNums=3, brokerName="module")

        @pytest.mark.rocketmq(brokerName="test")
        def test_both(rocketmq):
            assert rocketmq.send("T", b"body").queue.broker_name == "test"
            assert len(rocketmq.offsets("G", "T")) == 3
        """
    )
    pytester.runpytest_inprocess("-q", "-p", "no:asyncio", "--strict-markers").assert_outcomes(passed=1)


def test_an_unknown_setting_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.rocketmq(messageDelayLevels="1s")
        def test_misspelt(rocketmq):
            pass
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*messageDelayLevels: there is no such setting; did you mean messageDelayLevel[?]"])


def test_a_failed_expectation_lists_what_arrived(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_waits_in_vain(rocketmq):
            rocketmq.create_topic("Orders", queues=1)
            rocketmq.create_topic("Ordres", queues=1)
            rocketmq.send("Orders", b"one pizza", tags="food", keys="order-1")
            rocketmq.send("Orders", b"one beer", tags="drinks")
            rocketmq.send("Ordres", b"one" + bytes(100))
            rocketmq.wait_for_messages("Orders", 2, tags="food", timeout_s=0)
        """
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:asyncio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*rocketmq.wait_for_messages(*",
            "E*AssertionError: after 0 s topic Orders had 1 of 2 messages with tags food",
            "E*  there is queue 0 offset 0, tags food, keys order-1: b'one pizza'",
            "E*  with other tags: drinks (1)",
            "E*  topic Ordres has 1",
        ]
    )


def test_the_backlog_of_a_group_is_described(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("Orders", queues=2)
    for _ in range(3):
        rocketmq.send("Orders", b"one pizza", queue_id=1)
    with pytest.raises(AssertionError) as failure:
        rocketmq.wait_until_consumed("kitchen", "Orders", timeout_s=0)
    assert str(failure.value) == ("after 0 s group kitchen had not consumed all of topic Orders:\n  queue 1: 0 of 3")


def test_a_misspelt_topic_is_not_consumed(rocketmq: RocketMQ) -> None:
    with pytest.raises(AssertionError, match="there is no such topic"):
        rocketmq.wait_until_consumed("kitchen", "Ordres", timeout_s=0)


def test_messages_are_returned_in_log_order_beyond_one_pull(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("Orders", queues=2)
    bodies = [b"%d" % number for number in range(100)]
    for number, body in enumerate(bodies):
        rocketmq.send("Orders", body, queue_id=number % 2)
    assert [message.body for message in rocketmq.wait_for_messages("Orders", 100)] == bodies


def test_a_missing_queue_is_named(rocketmq: RocketMQ) -> None:
    rocketmq.create_topic("Orders", queues=2)
    with pytest.raises(ConfigError):
        rocketmq.send("Orders", b"one pizza", queue_id=2)


def test_time_can_be_advanced_in_steps(rocketmq: RocketMQ) -> None:
    rocketmq.send("Reminders", b"ten seconds", delay_level=3)
    rocketmq.send("Reminders", b"a minute", delay_level=5)
    rocketmq.advance(10)
    assert [message.body for message in rocketmq.wait_for_messages("Reminders")] == [b"ten seconds"]
    assert len(rocketmq.messages(SCHEDULE_TOPIC)) == 2
    rocketmq.advance(50)
    assert [message.body for message in rocketmq.wait_for_messages("Reminders", 2)] == [b"ten seconds", b"a minute"]


@pytest.mark.slow
def test_clients_survive_hours_that_pass_for_the_broker_alone(rocketmq: RocketMQ) -> None:
    consumed: queue.Queue[bytes] = queue.Queue()
    with Producer("shop") as producer, PushConsumer("kitchen") as kitchen:
        kitchen.subscribe("Orders")
        kitchen.listen(lambda message: consumed.put(message.body))
        producer.send(Message("Orders", b"before"))
        assert consumed.get(timeout=30) == b"before"
        rocketmq.advance(3 * 60 * 60)
        producer.send(Message("Orders", b"after"))
        assert consumed.get(timeout=30) == b"after"


def test_stopping_frees_the_port_and_leaves_a_sound_store(tmp_path: Path) -> None:
    with RocketMQ(tmp_path) as rocketmq:
        rocketmq.send("Orders", b"one pizza")
        ports = [int(address.rpartition(":")[2]) for address in (rocketmq.namesrv, rocketmq.broker)]
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    assert check(rocketmq.store) == []


def test_a_broker_imports_no_optional_package() -> None:
    """What the command line, filters, metrics and Spark need would cost the first test of a run as much again."""
    program = "import sys, rucola.testing.rocketmq; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"click", "lark", "pandas", "prometheus_client", "pyarrow", "pyspark", "pytest", "rich"}
    assert heavy & set(loaded) == set()


def test_runs_without_a_broker_import_none() -> None:
    program = "import sys, rucola.testing.plugin\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in loaded if name.startswith("rucola.")] == ["rucola.testing", "rucola.testing.plugin"]
