"""The receipt of a run: digests of its options, data, batches, gradients and weights, in a chain. Imports torch and `core`; nothing of other rooms."""
