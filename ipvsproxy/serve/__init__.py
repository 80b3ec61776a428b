"""Servers that others ask: edges that read what the sync thread publishes, and never call into it."""
