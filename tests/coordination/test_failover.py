"""Failover of real processes: killed, stopped and paused masters, and an etcd that is away."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.admin import AdminClient
from rucola.client import Producer
from rucola.errors import MQError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from support.elected_group import ElectedGroup
from support.etcd import EtcdServer
from support.send_ledger import SendLedger
from support.servers import run
from support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def group(tmp_path: Path, own_etcd: EtcdServer) -> AsyncIterator[ElectedGroup]:
    """A pair; afterwards the logs are equal and sound, unless the test has stopped it itself."""
    with ExitStack() as stack:
        group = ElectedGroup(tmp_path, stack, own_etcd)
        await group.create_topic()
        yield group


def producer_of(group: ElectedGroup) -> Producer:
    return Producer("p", group.namesrv, retry_times=0)


async def test_the_slave_of_a_killed_master_takes_over_and_nothing_is_lost(group: ElectedGroup) -> None:
    ledger = SendLedger()
    async with asyncio.timeout(150), producer_of(group) as producer:
        await ledger.until_ok(producer)
        for _ in range(100):
            await ledger.send(producer)
        first = await group.master()
        sending = asyncio.create_task(send_on(ledger, producer))
        await until(lambda: has_acknowledged(ledger, 150))
        group.kill(first)
        await until(lambda: is_other_master(group, first))
        group.start(first)
        enough = len(ledger.acknowledged) + 50
        await until(lambda: has_acknowledged(ledger, enough))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert await group.master() != first, "the old master follows the new one"
        assert "elected master" not in group.log(first)
        async with AdminClient(group.namesrv) as admin:
            reasons = {
                one: status.switch_reason for one, status in (await admin.roles.group(group.address(first))).items()
            }
        assert reasons.pop(group.address(first)) == "start", "it was master when it was killed"
        assert [*reasons.values()] == ["election"]
        await ledger.check(group.namesrv)
    await group.stop()


async def send_on(ledger: SendLedger, producer: Producer) -> None:
    while True:
        await ledger.send(producer)
        await asyncio.sleep(0.002)


async def has_acknowledged(ledger: SendLedger, count: int) -> bool:
    return len(ledger.acknowledged) >= count


async def is_other_master(group: ElectedGroup, first: int) -> bool:
    return await group.master() != first


async def test_a_stopped_master_hands_over_at_once(group: ElectedGroup) -> None:
    ledger = SendLedger()
    async with asyncio.timeout(150), producer_of(group) as producer:
        await ledger.until_ok(producer)
        await until(group.all_in_sync)
        first = await group.master()
        (other,) = group.brokers.keys() - {first}
        for command in (("promote",), ("promote", "--force"), ("demote", "--force")):
            arguments = ("admin", *command, "-n", group.namesrv, "-b", group.address(other), "--yes")
            refused = await asyncio.to_thread(run, *arguments)
            assert refused.returncode != 0
            assert "is elected (etcdEndpoints)" in refused.stderr
            assert re.findall("rucola admin [a-z]+", refused.stderr) == ["rucola admin switchover"], "one that works"
        assert await asyncio.to_thread(group.brokers[first].stop) == 0
        await until(lambda: is_other_master(group, first))
        group.start(first)
        await ledger.until_ok(producer)
        await ledger.check(group.namesrv)
    await group.stop()


async def test_a_paused_master_acknowledges_nothing_when_it_goes_on(group: ElectedGroup) -> None:
    """Requests wait in its socket while another broker becomes master: it refuses them all."""
    ledger = SendLedger()
    remoting = RemotingClient()
    async with asyncio.timeout(150), producer_of(group) as producer:
        await ledger.until_ok(producer)
        await until(group.all_in_sync)
        first = await group.master()

        def request(number: int) -> asyncio.Task[RemotingCommand]:
            header = SendMessageRequestHeaderV2(
                producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
                sys_flag=0, born_timestamp=1, flag=0, properties="",
            )  # fmt: skip
            command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"in the socket %d" % number)
            return asyncio.create_task(remoting.invoke(group.address(first), command, 60_000))

        assert (await request(0)).code == ResponseCode.SUCCESS
        # Some of these are in work when it is stopped, the others have not been read.
        early = [request(number) for number in range(1, 400)]
        done, _ = await asyncio.wait(early, return_when=asyncio.FIRST_COMPLETED)
        assert done
        group.signal(first, signal.SIGSTOP)
        late = [request(number) for number in range(400, 450)]
        await until(lambda: is_other_master(group, first))
        answered = {task for task in early if task.done()}
        group.signal(first, signal.SIGCONT)
        outcomes = await asyncio.gather(*(set(early) - answered), *late, return_exceptions=True)
        codes = {each.code for each in outcomes if isinstance(each, RemotingCommand)}
        assert ResponseCode.SUCCESS not in codes
        await ledger.until_ok(producer)
        await until(lambda: follows_again(group, first))
        await ledger.check(group.namesrv)
    await remoting.close()
    await group.stop()


async def follows_again(group: ElectedGroup, number: int) -> bool:
    return "role SLAVE after" in group.log(number).rsplit("role SYNC_MASTER", 1)[-1]


async def test_without_etcd_everything_goes_on(group: ElectedGroup) -> None:
    """The slave promises; without its promise the master accepts nothing until etcd is back."""
    ledger = SendLedger()
    async with asyncio.timeout(200), producer_of(group) as producer:
        await ledger.until_ok(producer)
        await until(group.all_in_sync)
        first = await group.master()
        group.etcd.kill()
        before_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < before_s + 12:  # three times the ttl
            await ledger.send(producer)
            await asyncio.sleep(0.05)
        assert [other for other in ledger.others if "SLAVE" not in other[1]] == []
        assert ledger.acknowledged[-1].begin_s > before_s + 11
        assert await group.master() == first
        (slave,) = group.brokers.keys() - {first}
        group.signal(slave, signal.SIGSTOP)

        async def is_refused() -> bool:
            outcome = await ledger.send(producer)
            return isinstance(outcome, MQError) and "etcd does not answer" in str(outcome)

        await until(is_refused)
        group.signal(slave, signal.SIGCONT)
        await ledger.until_ok(producer)
        group.etcd.start()
        await ledger.until_ok(producer)
        assert await group.master() == first
        await until(lambda: "coordination by etcd: works again" in group.log(first))
        await ledger.check(group.namesrv)
    await group.stop()
