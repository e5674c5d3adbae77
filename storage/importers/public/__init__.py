"""Public data sets by name, in the layout in which they are published. Imports: every other room of storage."""
