"""`python -m sluiceway` is the command `sluiceway`."""

from sluiceway.cli.main import main

if __name__ == "__main__":
    main()
