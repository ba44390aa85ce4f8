"""Shared by all rooms: operations, the choice of an implementation, checks of arguments, the scale, the state."""
