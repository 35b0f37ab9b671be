"""What is in a data directory, and what it is good for."""
