"""The data on which a worker trains and scores: loaders, kept batches, nodes from partition servers. Imports: cluster.serving, .tasks and below."""
