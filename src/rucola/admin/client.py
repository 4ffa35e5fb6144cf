"""AdminClient: every administrative request as one method that returns values and prints nothing.

Names of methods and words in results are those of Apache's `MQAdminExt`, in snake case. The methods stand in one file a
family:

    asking         the map of the cluster: routes, brokers, clusters
    cluster        name servers and brokers: configuration, figures, permissions
    topics         topics and their queues
    groups         consumer and producer groups, their clients and offsets
    traffic        what comes in and goes out
    searching      finding messages
    messages       giving one to a consumer, and following it
    tracing        what clients tell of a message's way
    exporting      settings and figures of a cluster as documents
    dead_letters   what groups have given up, and sending it again
    monitoring     one look at all groups

They ask Apache's servers as well as ours.

Answers to `DefaultMQAdminExtImpl` and `MQAdminImpl` of Apache RocketMQ 4.9.8. Deliberate differences: a key query does
not stop at 64 records, its result comes newest first and says when it was cut and which brokers did not answer; a group
without clients is reset by the same call as one with clients.
"""

from __future__ import annotations

from rucola.admin.export import ExportAdmin
from rucola.admin.monitor import MonitorAdmin
from rucola.admin.traces import TraceAdmin
from rucola.admin.traffic import TrafficAdmin


class AdminClient(TrafficAdmin, ExportAdmin, TraceAdmin, MonitorAdmin):
    """An operator's view of a cluster; use it as `async with AdminClient("127.0.0.1:9876") as admin`.

    `namesrv` reads "host:port;host:port". Belongs to one event loop. Every method raises RemotingConnectError or
    RemotingTimeout when nobody answers, BrokerError when an answer is an error code, and TopicNotFound for a topic
    without a route.
    """
