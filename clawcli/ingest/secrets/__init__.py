"""Take secrets out of what is written."""
