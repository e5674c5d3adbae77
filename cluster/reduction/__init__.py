"""Gradients added along one fixed tree, equal for any number of workers. Imports: samplers, core."""
