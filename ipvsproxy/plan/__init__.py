"""From what each Service wants to ordered operations: the same for every mode. Pure."""
