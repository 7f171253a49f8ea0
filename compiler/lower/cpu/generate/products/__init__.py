"""Matrix products: with a weight, of two matrices, batched, with a vector, and 1×1 convolutions.

`product_form.py` analyses a product, `product.py` writes it, `product_reads.py` says how its sides are read, and which
panels are copied (decision 58), `copied_columns.py` how. Products of other kinds of terms (`terms.py`) are written by
the same writer: of bytes by `integers/`, of pairs by `bfloat/`. `few_columns.py` is of products and convolutions.
"""
