"""Everything that needs Ray: partition servers, the remote owners behind a router, the DDP trainer, metrics, launching."""
