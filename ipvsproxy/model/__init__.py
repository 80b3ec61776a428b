"""Values that every part of the program shares: addresses, kernel numbers, names, objects. Pure."""
