"""The bundle: its format, its reader and writer, and the errors of every layer."""
