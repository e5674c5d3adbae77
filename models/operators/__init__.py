"""Attentions, convolutions and local blocks: what layers are made of. Imports: models.primitives, .options."""
