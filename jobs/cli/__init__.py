"""How a command ends, what it prints and how it is typed again. Imports: storage, core."""
