"""Why a consumer group is behind: the findings about real clients and brokers, and the commands that repair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rucola.admin import AdminClient, Finding, SubscriptionGroupConfig, TopicConfig
from rucola.admin.commands import CATALOGUE
from rucola.admin.commands.diagnosis import REMEDIES, repair
from rucola.client import PushConsumer
from rucola.client.instance import ClientInstance
from support.console import live_cluster, visitor
from support.waiting import until


def reasons(found: Sequence[Finding]) -> list[str]:
    return [one.reason for one in found]


async def test_settings_that_keep_messages_from_a_group_are_found_and_repaired(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        (one,) = await admin.diagnosis.check("billing")
        assert (one.reason, one.fields) == ("NO_CLIENT", {"backlog": 30})
        assert await admin.diagnosis.check("none") == []

        address = await admin.cluster.master_address("broker-a")
        closed = SubscriptionGroupConfig(group_name="billing", consume_enable=False, retry_max_times=3)
        await admin.groups.create_or_update(address, closed)
        await admin.topics.create_or_update(
            address, TopicConfig(topic_name="Orders", read_queue_nums=2, write_queue_nums=2, perm=2)
        )
        disabled, unreadable, _ = await admin.diagnosis.check("billing")
        assert (disabled.reason, disabled.fields["brokerName"]) == ("CONSUME_DISABLED", "broker-a")
        assert (unreadable.reason, unreadable.fields["topic"]) == ("TOPIC_NOT_READABLE", "Orders")
        async with visitor(running.namesrv) as console:
            text = await console.shows("/why?group=billing", "consuming is switched off there")
            assert "30 messages wait" in text
            form = await console.get(f"/run/updateSubGroup?group_name=billing&address={address}&edit=1")
            assert f'value="{address}"' in form.text
            assert (await console.get("/why?group=none")).status_code == 404
        results = [one async for one in CATALOGUE["diagnoseGroup"].run(admin, group="billing")]
        line = f"rucola admin updateSubGroup -b {address} -g billing -s true -q 1 -r 3"
        assert results[0].value["findings"][0]["repair"] == line

        await running.register("broker-c", "Orders", "127.0.0.1:1")
        assert reasons(await admin.diagnosis.check("billing"))[0] == "BROKER_SILENT"


async def test_clients_that_do_not_consume_are_found(tmp_path: Path) -> None:
    async with live_cluster(tmp_path) as running, AdminClient(running.namesrv) as admin:
        first = PushConsumer("billing", instance=ClientInstance(running.namesrv, client_id="first"))
        second = PushConsumer("billing", instance=ClientInstance(running.namesrv, client_id="second"))
        first.subscribe("Orders")
        second.subscribe("Orders", "none")
        async with first, second:

            async def differ() -> bool:
                return "SUBSCRIPTIONS_DIFFER" in reasons(await admin.diagnosis.check("billing"))

            await until(differ)

        slow = PushConsumer("billing", instance=ClientInstance(running.namesrv, client_id="third"))
        slow.subscribe("Orders")
        async with slow:
            await anext(aiter(slow))  # the first message is never finished

            async def is_stuck() -> bool:
                found = await admin.diagnosis.check("billing")
                return any((one.reason, one.fields.get("clientId")) == ("QUEUE_STUCK", "third") for one in found)

            await until(is_stuck)


def test_every_finding_has_an_explanation_and_a_command_that_exists() -> None:
    fields = dict.fromkeys(
        ("address", "clientId", "topic", "brokerName", "queueId", "backlog", "total", "clients", "queues"), "1"
    )
    fields["address"] = "127.0.0.1:1"
    fields |= dict.fromkeys(("error", "retryQueueNums", "retryMaxTimes", "cached", "failedTps", "why", "used"), "2")
    fields |= dict.fromkeys(("consumeTps", "consumeRt"), "3")
    for reason, remedy in REMEDIES.items():
        assert remedy.text.format(**fields)
        found = repair(Finding(reason, "s", dict(fields)), "g")
        if found is not None:
            known = {argument.name for argument in CATALOGUE[found[0]].arguments()} | {"address", "cluster"}
            assert found[1].keys() <= known, reason
