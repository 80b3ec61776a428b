"""What the program is told to do: flags and fields in, checked values out. Pure."""
