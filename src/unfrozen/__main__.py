"""`python -m unfrozen`."""

from unfrozen.cli import main

main()
