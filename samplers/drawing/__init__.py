"""Draws a batch from roots: order of roots, batches whose rows are still missing, the Sampler protocol. Imports: samplers.batches and below."""
