"""Minibatches in all forms: as tensors on a device, as layers, as PyG's Data, as DGL's blocks. Imports: samplers.access and below."""
