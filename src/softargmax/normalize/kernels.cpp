// Placeholder: the kernels of this room, compiled once per instruction set.
