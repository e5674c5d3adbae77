"""Access to partitions: router, owners, array pools, message counts. Imports: samplers.kernels, .vocabulary."""
