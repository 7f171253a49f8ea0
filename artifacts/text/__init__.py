"""Text from models, bundles and other files: in one line, safe for a terminal, as names of files."""
