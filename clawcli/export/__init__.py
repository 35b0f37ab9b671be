"""Export: rows for other trainers, and packed shards for claw train."""
