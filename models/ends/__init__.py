"""Where a model begins and ends: encoders of columns, heads, decoders of links. Imports: models.operators, .encodings and below."""
