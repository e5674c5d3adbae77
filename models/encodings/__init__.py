"""Positional encodings as modules. Imports: models.primitives, .options."""
