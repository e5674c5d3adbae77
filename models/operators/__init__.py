"""Has attentions, convolutions and local blocks, the parts of layers. Imports: models.primitives, .options."""
