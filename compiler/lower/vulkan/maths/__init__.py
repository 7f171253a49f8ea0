"""Functions of real numbers in float32, for devices that offer none of stated accuracy."""
