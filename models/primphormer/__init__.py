"""Has Primphormer: options, network and primal attention."""
