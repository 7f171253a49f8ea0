"""Matrix products: with a weight, of two matrices, batched, with a vector, and 1×1 convolutions.

`product_form.py` analyses a product, `product.py` writes it, and `panel_copies.py` says which panels are copied
(decision 58), `copied_columns.py` how.
"""
