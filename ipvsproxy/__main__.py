"""`python -m ipvsproxy`."""

from __future__ import annotations

from ipvsproxy.cli import main

if __name__ == "__main__":
    main()
