"""What touches devices: code, memory, copies and the chain that runs them."""
