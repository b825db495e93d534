"""``python -m t2t``: the command line."""

from t2t.cli import main

if __name__ == "__main__":
    main()
