"""Operators that compute the elements of their results from elements, and numbers of them."""
