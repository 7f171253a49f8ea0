"""The `heterocc` command."""
