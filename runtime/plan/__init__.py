"""What a run does, computed once when a bundle is loaded, without touching a device."""
