"""Metadata tables of a broker: in memory, and in `config/*.json` in Apache's formats."""
