"""The table of forms: which form each core takes for each of a list of shapes, with its tile, held against files."""
