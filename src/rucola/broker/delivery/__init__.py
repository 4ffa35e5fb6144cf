"""Delivery of messages that wait in the broker: delay levels, timed messages, transactions."""
