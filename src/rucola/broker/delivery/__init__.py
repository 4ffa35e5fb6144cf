"""Delivery of waiting messages: delay levels, timer messages and transactions."""
