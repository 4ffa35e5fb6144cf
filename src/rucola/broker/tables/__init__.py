"""Small tables that a broker keeps in memory and writes to `config/*.json` in Apache's shapes."""
