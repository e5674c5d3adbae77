"""Partition servers: Ray actors that own partitions. Imports: cluster.transport, .process, .options."""
