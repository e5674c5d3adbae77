"""PPGT: options, network and its sl2 attention."""
