"""Has PPGT: options, network and sL2 attention."""
