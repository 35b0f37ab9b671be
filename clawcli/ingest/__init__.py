"""Ingest: logs to a step table."""
