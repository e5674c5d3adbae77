"""Small files that others may have written: JSON, YAML, bounded text; locks in files. Imports: core."""
