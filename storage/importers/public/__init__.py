"""Public data sets by name, read from the files as they are published. Imports: every other room of storage."""
