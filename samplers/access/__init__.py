"""Who owns a partition and how it is asked: router, owners, pools of arrays, traffic. Imports: samplers.kernels, .vocabulary."""
