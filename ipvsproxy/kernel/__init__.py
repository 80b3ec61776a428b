"""The kernel edge: one file a subsystem behind the Protocols of api.py. Only here: pyroute2, gnlpy and iptc."""
