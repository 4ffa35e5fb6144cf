"""GroupClient: the base class of producers and consumers."""

from __future__ import annotations

from typing import TypedDict

from rucola.acl.credentials import Credentials
from rucola.client.arguments import check_group_name
from rucola.client.connection_options import ConnectionOptions
from rucola.client.instance import ClientInstance
from rucola.client.lifecycle import Lifecycle
from rucola.errors import ConfigError
from rucola.remoting.tls import ClientTls


class GroupClientKeywords(TypedDict, total=False):
    instance: ClientInstance | None
    tls: ClientTls | None
    credentials: Credentials | None


class GroupClient(Lifecycle):
    """A client with a group and an instance: its own, or a shared one.

    A shared instance is opened by its first client, and closed by its owner. Opening sends no request, except for a
    consumer's first heartbeat.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | ConnectionOptions | None,
        instance: ClientInstance | None,
        *,
        instance_name: str | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__()
        check_group_name(group)
        if instance is not None and (tls is not None or credentials is not None):
            stated = "tls" if tls is not None else "credentials"
            raise ConfigError(
                f"group {group}: {stated}= is that of the shared instance: pass it to ClientInstance", subject=stated
            )
        self.group = group
        self.instance = instance or ClientInstance(
            ConnectionOptions.of(namesrv, tls, credentials), instance_name=instance_name
        )
        self.owns_instance = instance is None

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} of group {self.group}"

    async def _start(self) -> None:
        await self.instance.open()
        await self._join()

    async def _stop(self) -> None:
        try:
            await self._leave()
        finally:
            if self.owns_instance:
                await self.instance.close()

    async def _join(self) -> None:
        """Join the group."""

    async def _leave(self) -> None:
        """Leave the group. A cancellation expedites this."""
