"""Curation: a data directory to a smaller one, with the reason for everything that went."""
