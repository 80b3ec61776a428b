"""What the cluster says, after the wire and before any mode. Pure."""
