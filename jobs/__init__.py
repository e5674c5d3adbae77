"""Commands, one file each, and the packages that they use. Imports: cluster, samplers, storage, models, core."""
