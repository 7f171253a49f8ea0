"""The plan of a run, computed once when a bundle is loaded, without use of a device."""
