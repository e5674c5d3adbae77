"""Exit codes and output of commands, and commands as a user types them. Imports: storage, core."""
