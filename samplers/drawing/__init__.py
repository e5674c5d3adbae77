"""From roots to a batch: the order of the roots, batches whose rows are not fetched yet, and the Sampler protocol. Imports: samplers.batches and below."""
