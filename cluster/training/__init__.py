"""The training loop, and its launchers: one process or Ray Train. Imports: every room of cluster but prediction."""
