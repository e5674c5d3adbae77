"""Has the positional encodings. Imports: models.primitives, .options."""
