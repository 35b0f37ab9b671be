"""Rows for other trainers, one file per kind of row."""
