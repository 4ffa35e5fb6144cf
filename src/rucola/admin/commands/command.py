"""Commands of an operator as data: name, arguments, coroutine, columns and risk; `rucola admin` is one view of them.

A command is a coroutine with an AdminClient as its first parameter. Its other parameters are the arguments: annotations
say their type and, by an `Option`, the flags and the help. The docstring is the help of the command. It returns what
JSON shows, rows for `columns`, or a `Result`:

    @command("topicStatus", columns=(Column("#Broker Name", "brokerName"), whole("#QID", "queueId")))
    async def topic_status(client: AdminClient, topic: Topic) -> list[Row]:

It prints nothing and does not ask.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from rucola.admin.client import AdminClient
from rucola.admin.requests import gather_fail_fast
from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError
from rucola.presentation import Column, Table

Row = dict[str, Any]
C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")


class InvalidArguments(ConfigError):
    """Arguments that do not belong together; nothing was requested."""


class Risk(Enum):
    READ = "read"
    WRITE = "write"
    DANGEROUS = "dangerous"
    """Ask first."""


@dataclass(frozen=True, slots=True)
class Option:
    """The flags of an argument and its help; `min` and `max` are inclusive."""

    flags: str
    help: str
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    format: str = ""
    """`address`, `time`, `time or end` (-1), `file`, `new file`, `directory`, `lake`, `outbox`, or `text` as it is."""
    prompt: str = ""
    """For a secret, its name: the value - asks for it, since command lines are visible to other users."""
    envvar: str = ""


class Flag(Option):
    """An option without a value. Without it, a boolean is written as true or false."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of a command; a `Target` has the flags of a cluster, and -b."""

    name: str
    type: type
    option: Option
    is_required: bool
    default: Any = None

    @property
    def is_flag(self) -> bool:
        return isinstance(self.option, Flag)


@dataclass(frozen=True, slots=True)
class Target:
    """Brokers of a command: the one at an address (-b), a cluster's (-c), or all if both are None."""

    address: str | None
    cluster: str | None

    def __str__(self) -> str:
        return self.address or self.cluster or "every broker"

    async def masters(self, client: AdminClient) -> list[str]:
        if self.address is not None:
            return [self.address]
        clusters = sorted((await client.cluster.info()).cluster_addr_table) if self.cluster is None else [self.cluster]
        return [address for name in clusters for address in (await client.cluster.masters(name)).values()]

    async def ask(self, client: AdminClient, query: Callable[[str], Coroutine[Any, Any, T]]) -> dict[str, T]:
        """Return what each master responds, by address."""
        addresses = await self.masters(client)
        return dict(zip(addresses, await gather_fail_fast(map(query, addresses)), strict=True))

    async def brokers(self, client: AdminClient) -> list[str]:
        """Return the addresses of the broker, or of the masters and slaves of the cluster."""
        return [self.address] if self.address is not None else await client.cluster.addresses(self.cluster or "")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command."""

    value: Any
    """The shape of the JSON; structs and dataclasses are converted."""
    text: Sequence[str | Table] | None = None
    """The same for a reader: lines and tables. By default, `value` in the columns of the command, or as JSON."""
    notes: Sequence[str] = ()
    """Notes for the operator, shown with the result."""
    is_failure: bool = False
    undo: tuple[str, Mapping[str, Any]] | None = None
    """The command that restores the state before, and its arguments."""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    call: Callable[..., Any]
    """A coroutine function or, if there may be many results, an asynchronous generator function."""
    columns: Sequence[Column] = ()
    risk: Risk = Risk.READ
    confirm: str | Callable[..., Awaitable[str]] = ""
    """The effect of a dangerous command: a template for its arguments, or a coroutine like `call` that checks first.

    A coroutine returns "" if these arguments change nothing.
    """
    preview: Callable[..., Awaitable[Table]] | None = None
    """A coroutine like `call` that returns what would change now, in detail."""
    is_repeatable: bool = False
    """The command measures a state that an operator may watch."""
    shows_bodies: bool = False
    """The results have bodies of messages."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """Arguments with which a command that reads changes something, and what: a template for its arguments."""
    waits: bool = False
    """The command waits for the cluster, at most `timeout_s` of its arguments; another call continues it."""

    def effect(self, arguments: Mapping[str, Any]) -> str:
        """Return what a command that otherwise reads changes with these arguments; empty for nothing."""
        texts = (text for name, text in self.effects.items() if arguments.get(name))
        return next(texts, "").format(**self._complete(arguments))

    def risk_of(self, arguments: Mapping[str, Any]) -> Risk:
        return Risk.WRITE if self.effect(arguments) else self.risk

    @property
    def help(self) -> str:
        return inspect.getdoc(self.call) or ""

    @property
    def subject(self) -> str:
        """The subject of its module, the first words of that docstring."""
        return (inspect.getdoc(inspect.getmodule(self.call)) or "").partition(":")[0]

    def arguments(self) -> Iterator[Argument]:
        hints = get_type_hints(self.call, include_extras=True)
        for name, parameter in list(inspect.signature(self.call).parameters.items())[1:]:
            kind, option = get_args(hints[name])
            (kind,) = [one for one in get_args(kind) or (kind,) if one is not NoneType]
            is_required = parameter.default is parameter.empty
            yield Argument(name, kind, option, is_required, None if is_required else parameter.default)

    async def question(self, client: AdminClient, **arguments: Any) -> str:
        """Return what the command will do. Errors as the command itself."""
        given = self._complete(arguments)
        return self.confirm.format(**given) if isinstance(self.confirm, str) else await self.confirm(client, **given)

    async def changes(self, client: AdminClient, **arguments: Any) -> Table | None:
        """Return what the command would change now, in detail, if it can say."""
        return await self.preview(client, **self._complete(arguments)) if self.preview is not None else None

    def _complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {one.name: one.default for one in self.arguments() if not one.is_required} | dict(arguments)

    async def run(self, client: AdminClient, **arguments: Any) -> AsyncGenerator[Result, None]:
        """Yield the only result, or the results of a generator as they come."""
        if self.is_stream:
            async with aclosing(self.call(client, **arguments)) as results:
                async for result in results:
                    yield result
        else:
            found = await self.call(client, **arguments)
            yield found if isinstance(found, Result) else Result(found)

    @property
    def is_stream(self) -> bool:
        return inspect.isasyncgenfunction(self.call)


CATALOGUE: Final[dict[str, Command]] = {}
"""All commands by name."""


def command(
    name: str,
    *,
    columns: Sequence[Column] = (),
    writes: bool = False,
    confirm: str | Callable[..., Awaitable[str]] = "",
    preview: Callable[..., Awaitable[Table]] | None = None,
    is_repeatable: bool = False,
    shows_bodies: bool = False,
    effects: Mapping[str, str] | None = None,
    waits: bool = False,
) -> Callable[[C], C]:
    """Add a coroutine to the catalogue; with `confirm` it is dangerous."""
    risk = Risk.DANGEROUS if confirm else Risk.WRITE if writes else Risk.READ

    def add(call: C) -> C:
        CATALOGUE[name] = Command(
            name, call, columns, risk, confirm, preview, is_repeatable, shows_bodies, effects or {}, waits
        )
        return call

    return add


def report(addresses: Sequence[str], text: str, /, **members: Any) -> Result:
    """Return the changed brokers, with a line for each; `{}` is its address."""
    return Result({"brokerAddrs": addresses, **members}, [text.format(one) for one in addresses])


def split(text: str) -> list[str]:
    """Split a list that is separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def no_such_queue(queue: MessageQueue, queues: Iterable[MessageQueue]) -> ConfigError:
    known = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in sorted(queues))
    return ConfigError(f"topic {queue.topic} has no queue {queue.broker_name}:{queue.queue_id}; it has {known}")


def check_window(begin_ms: int | None, end_ms: int | None, options: str = "-b -e") -> None:
    """Raise InvalidArguments if the range starts after its end; `options` are the names of both."""
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        begin, end = options.split()
        raise InvalidArguments(f"{begin} {begin_ms} is after {end} {end_ms}")


SINCE: Final = "Only messages stored at this time or later: 2013-01-01T05:15:00, milliseconds, or now."
Topic = Annotated[str, Option("-t --topic", "Name of the topic.")]
BrokerAddress = Annotated[str, Option("-b --brokerAddr", "Address of the broker, host:port.", format="address")]
GroupName = Annotated[str, Option("-g --groupName", "Consumer group.")]
ConsumerGroup = Annotated[str, Option("-g --consumerGroup", "Consumer group.")]
BrokerName = Annotated[str, Option("-b --brokerName", "Broker name.")]
QueueId = Annotated[int, Option("-q --queueId", "Queue id.", min=0)]
Masters = Annotated[Target, Option("-c --clusterName", "Name of a cluster, for all its masters.")]
ALL_MASTERS: Final = Target(None, None)
AllBrokers = Annotated[Target, Option("-c --clusterName", "Name of a cluster, for its masters and slaves.")]
BeginTime = Annotated[int | None, Option("-b --beginTimestamp --since", SINCE, format="time")]
EndTime = Annotated[
    int | None, Option("-e --endTimestamp --until", "Only messages stored at this time or earlier.", format="time")
]
