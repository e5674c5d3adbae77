"""Access to partitions: router, owners, pools of arrays, traffic. Imports: samplers.kernels, .vocabulary."""
