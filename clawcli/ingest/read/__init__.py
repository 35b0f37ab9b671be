"""Read sources: inputs to bytes, bytes to records."""
