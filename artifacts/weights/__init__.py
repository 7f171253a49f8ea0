"""The weights of a bundle: their file, the layouts in which code reads them, and their hashes."""
