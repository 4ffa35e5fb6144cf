"""Adapter of requests about the broker itself: settings, figures, statistics.

UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26), GET_BROKER_RUNTIME_INFO (28), GET_SYSTEM_TOPIC_LIST_FROM_BROKER
(305), VIEW_BROKER_STATS_DATA (315), and Rucola's GET_DIAGNOSIS (20010), GET_PENDING_MESSAGES
(20011) and GET_PROCESS_REPORT (20012).
"""

from __future__ import annotations

from rucola import fastjson, settings
from rucola.access import Action
from rucola.broker.services.configuration import ConfigurationService
from rucola.broker.services.diagnosis import DiagnosisService
from rucola.broker.services.pending import PendingService
from rucola.broker.services.process_report import report_steps
from rucola.broker.services.runtime_info import RuntimeInfoService
from rucola.protocol.broker_stats import ViewBrokerStatsDataRequestHeader
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import Header
from rucola.protocol.kv import KVTable
from rucola.protocol.route import TopicList
from rucola.remoting.connection import Answer, Reply
from rucola.remoting.endpoints import Endpoint, Endpoints, Request
from rucola.slices import in_slices


class ConfigVersionHeader(Header, kw_only=True):
    """Response to GET_BROKER_CONFIG: the version of the configuration, a DataVersion as JSON."""

    version: str


class RuntimeAdapter:
    def __init__(
        self,
        configuration: ConfigurationService,
        info: RuntimeInfoService,
        diagnosis: DiagnosisService,
        pending: PendingService,
    ) -> None:
        self._configuration = configuration
        self._info = info
        self._diagnosis = diagnosis
        self._pending = pending

    def endpoints(self) -> Endpoints:
        statistic = ViewBrokerStatsDataRequestHeader
        return (
            Endpoint(RequestCode.UPDATE_BROKER_CONFIG, Action.ALTER_CONFIG, self.update_config),
            Endpoint(RequestCode.GET_BROKER_CONFIG, Action.QUERY, self.get_config),
            Endpoint(RequestCode.GET_BROKER_RUNTIME_INFO, Action.QUERY, self.figures),
            Endpoint(RequestCode.GET_DIAGNOSIS, Action.QUERY, self.diagnosis),
            Endpoint(RequestCode.GET_PENDING_MESSAGES, Action.QUERY, self.pending),
            Endpoint(RequestCode.GET_PROCESS_REPORT, Action.QUERY, self.process_report),
            Endpoint(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Action.QUERY, self.system_topics),
            Endpoint(RequestCode.VIEW_BROKER_STATS_DATA, Action.QUERY, self.statistic, statistic),
        )

    async def diagnosis(self, request: Request[None]) -> Answer:
        return request.success(body=await self._diagnosis.findings())

    async def pending(self, request: Request[None]) -> Answer:
        return request.success(body=await self._pending.pending())

    async def process_report(self, request: Request[None]) -> Answer:
        return request.success(body=(await in_slices(report_steps())).encode("utf-8", "replace"))

    async def update_config(self, request: Request[None]) -> Answer:
        await self._configuration.update(request.caller, request.command.body)
        return request.success()

    def get_config(self, request: Request[None]) -> Reply:
        return request.success(
            ConfigVersionHeader(version=fastjson.dumps(self._configuration.version).decode()),
            settings.render(self._configuration.properties()).encode("utf-8"),
        )

    def figures(self, request: Request[None]) -> Reply:
        return request.success(body=KVTable(table=self._info.figures()))

    def system_topics(self, request: Request[None]) -> Reply:
        return request.success(body=TopicList(topic_list=self._info.system_topics()))

    def statistic(self, request: Request[ViewBrokerStatsDataRequestHeader]) -> Reply:
        data = self._info.statistic(request.content.stats_name, request.content.stats_key)
        return request.success(body=data)
