"""Files that commands read and write, and temporary ones."""
