"""Ray, our own or a cluster's: session, nodes, placement of workers. Imports: cluster.process, .options."""
