"""Reads small files that other programs may have written (JSON, YAML, text of bounded size), and makes locks in files. Imports: core."""
