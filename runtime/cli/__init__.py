"""The command `heterocc-run`, and what it shares with `heterocc`."""
