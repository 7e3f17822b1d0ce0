"""A plan becomes files: per-rank shards, reshaped, merged and converted checkpoints; written beside, then renamed."""
