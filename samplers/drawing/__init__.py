"""From roots to a batch that is being drawn: order of roots, pending batches, the Sampler protocol. Imports: samplers.batches and below."""
