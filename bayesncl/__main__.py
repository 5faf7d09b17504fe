"""`python -m bayesncl` and the command `bayesncl`."""

from bayesncl.cli.app import main

if __name__ == "__main__":
    main()
