"""From roots to minibatches: neighbor sampling, random partitioning, and the loader that streams them. No Ray."""
