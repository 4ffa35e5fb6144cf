"""Business reliability: transactional outbox, receipts, idempotent consumption, resend. Needs the extra `reliable`.

Reading order: `schema`, `migration`; for senders `outbox`, `dbapi`; `relay` with `lane_leases`, `stub_claims`,
`batch_sender`, `policy`, `stub_checks`, `alerts`, and `tenants`; for consumers `receipts`, `redis_claims`,
`idempotent`; for operators `operations`, `joined_view`, `metrics`.
"""

from rucola.errors import missing_extra

try:
    import sqlalchemy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_extra(error, "reliable"), name=error.name) from None

from rucola.reliable.alerts import Alert, Alerts, email_sink, log_sink, webhook_sink
from rucola.reliable.errors import LeaseLost, ReliableError, SchemaError
from rucola.reliable.idempotent import UnknownMessage, idempotent
from rucola.reliable.outbox import Outbox
from rucola.reliable.policy import KeyedResend, Policy
from rucola.reliable.redis_claims import RedisClaims
from rucola.reliable.relay import Relay
from rucola.reliable.schema import Tables
from rucola.reliable.tenants import Relays, Tenant

__all__ = [
    "Alert",
    "Alerts",
    "KeyedResend",
    "LeaseLost",
    "Outbox",
    "Policy",
    "RedisClaims",
    "Relay",
    "Relays",
    "ReliableError",
    "SchemaError",
    "Tables",
    "Tenant",
    "UnknownMessage",
    "email_sink",
    "idempotent",
    "log_sink",
    "webhook_sink",
]
