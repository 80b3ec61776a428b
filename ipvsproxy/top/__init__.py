"""`ipvsproxy top`: samples of the kernel's IPVS → figures → a screen. Only this package knows rich and terminals."""
