"""Maps: kernels without sums, each element of whose outputs is computed from elements of the inputs."""
