"""How a command ends, what it prints, and how a user types it again. Imports: storage, core."""
