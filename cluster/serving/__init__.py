"""Runs partition servers: Ray actors that own partitions of a graph. Imports: cluster.transport, .metrics, .process, .options."""
