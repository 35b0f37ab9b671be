"""Join rewards from other files to steps."""
