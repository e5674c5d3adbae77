"""A Ray of ours or a cluster's: session, nodes, placement of workers. Imports: cluster.process, .options."""
