"""Matrix products: with a weight, of two matrices, batched, with a vector, and 1×1 convolutions."""
