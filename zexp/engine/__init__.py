"""Engines run staged programs; all return the same RunResult."""
