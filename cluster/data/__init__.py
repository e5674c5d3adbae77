"""What a worker trains and scores on: loaders, kept batches, served nodes. Imports: cluster.serving, .tasks and below."""
