"""Commands, one file each, over the rooms of this folder. Imports: cluster, samplers, storage, models, core."""
