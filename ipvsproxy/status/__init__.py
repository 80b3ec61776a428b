"""What the kernel's IPVS holds, as text: what `ipvsadm` 1.31 prints, to the byte. Dumped objects in, lines out."""
