"""Business reliability: transactional outbox, receipts, idempotent consumption, resend. Needs the extra `reliable`.

Reading order:

    schema, migration                                   the tables and their versions
    outbox, dbapi                                       the sender's side; connections of plain SQL and Django
    lane_leases, stub_claims, batch_sender              the parts of the relay
    policy, stub_checks, alerts                         its checks of messages without a receipt
    relay                                               the loop that runs them
    receipts, redis_claims, idempotent                  the consumer's side
    operations, joined_view, metrics                    inspection and repair by operators
"""

from rucola.reliable.alerts import Alert, Alerts, email_sink, log_sink, webhook_sink
from rucola.reliable.errors import LeaseLost, ReliableError, SchemaError
from rucola.reliable.idempotent import UnknownMessage, idempotent
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import KeyedResend, Policy
from rucola.reliable.redis_claims import RedisClaims
from rucola.reliable.relay import Relay
from rucola.reliable.schema import Tables

__all__ = [
    "Alert",
    "Alerts",
    "KeyedResend",
    "LeaseLost",
    "Outbox",
    "Policy",
    "RedisClaims",
    "Relay",
    "ReliableError",
    "SchemaError",
    "Tables",
    "UnknownMessage",
    "email_sink",
    "idempotent",
    "log_sink",
    "webhook_sink",
]
