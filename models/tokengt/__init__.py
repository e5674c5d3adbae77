"""Has TokenGT: options, network, and the map of released checkpoints."""
