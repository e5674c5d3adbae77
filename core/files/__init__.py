"""Small files that somebody else may have written: JSON, YAML, bounded text; locks in files. Imports: core."""
