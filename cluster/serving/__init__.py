"""Partition servers: Ray actors that own partitions. Imports: cluster.transport, .metrics, .process, .options."""
