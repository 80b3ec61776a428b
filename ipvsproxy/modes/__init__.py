"""What a --proxy-mode plans: descriptions of kernel objects, nothing more. Pure."""
