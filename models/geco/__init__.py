"""Has GECO: options, network, and a network for many graphs."""
