"""Has SGFormer: options and network."""
