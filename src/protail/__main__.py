"""The command line, for ``python -m protail``."""

from protail.cli import main

if __name__ == "__main__":
    main()
