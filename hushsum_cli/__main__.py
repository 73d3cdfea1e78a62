"""`python -m hushsum_cli` is `hushsum`."""

from hushsum_cli.main import main

if __name__ == "__main__":
    main()
