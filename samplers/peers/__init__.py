"""Our loader in the training loops of others."""
