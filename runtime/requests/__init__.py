"""Requests that a session carries out on threads of its own: a queue, and iterators over many results in order."""
