"""Contains the commands, each in one file, and the packages that the commands use. Imports: cluster, samplers, storage, models, core."""
