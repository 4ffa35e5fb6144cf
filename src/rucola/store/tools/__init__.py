"""Offline tools: they work on a store directory that no broker serves."""
