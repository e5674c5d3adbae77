"""Has Polynormer: options and network."""
