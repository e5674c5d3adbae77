"""The end of a command, its output, and how a user types it again. Imports: storage, core."""
