"""What annotates the arguments of kernels."""

constexpr = int
