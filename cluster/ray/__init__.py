"""Connects to a cluster's Ray or starts a local Ray: session, checks of nodes, placement of workers. Imports: cluster.process, .options."""
