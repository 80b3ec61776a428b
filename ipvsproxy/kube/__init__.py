"""Where the cluster's objects come from: a folder of manifests or the API server; both tell cluster/events.py."""
