"""`python -m cos2p`, for where the `cos2p` command is not on the path."""

from cos2p.cli import main

if __name__ == "__main__":
    main()
