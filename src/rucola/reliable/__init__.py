"""Business reliability: outbox, receipts, idempotent consumption, timed resend. Takes the extra `reliable`.

Reading order: `schema` (the tables), `migration`; `outbox`; `lanes`, `claims`, `sending`, `policy`, `checks`, `alerts`
and `relay`, which they make up; `receipts`, `redis_claims` and `idempotent`; `operations` and
`joined_view`, what operators do.
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
