"""Code shared by all subpackages: operations, choice of an implementation, checks of arguments, scale and state."""
