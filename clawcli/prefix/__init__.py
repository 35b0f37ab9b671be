"""merge-prefixes: a data directory to a token tree."""
