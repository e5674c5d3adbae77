"""Adds gradients along one fixed tree, so that the sums are equal for any number of workers. Imports: samplers, core."""
