"""Engines that keep what a fleet knows: in this process, on Redis or Valkey, on PostgreSQL.

All that is decided stands in `policies/fleet.py`. An engine only reads a target, has it changed, and writes it back, so that no change is
lost: the same tests run against each of them.
"""
