"""GECO: options, network, and its form for many graphs."""
