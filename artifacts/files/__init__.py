"""Files: their sources and types, atomic writing, locks, changes behind one's back."""
