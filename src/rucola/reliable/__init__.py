"""Business reliability: outbox, receipts, idempotent consumption, timed resend. Takes the extra `reliable`."""
