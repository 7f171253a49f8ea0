"""Files that a run reads inputs from and writes outputs to."""
