"""Has GRIT: options, network, attention, and the map of released checkpoints."""
