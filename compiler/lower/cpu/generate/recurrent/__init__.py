"""The kernel of a recurrent layer."""
