"""What every room needs: the state, the choice of an implementation, the checks of arguments, the scale."""
