"""Plans as text, JSON, graphs and reproducers."""
