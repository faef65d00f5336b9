"""``python -m cockpit`` is the command ``cockpit``."""

from cockpit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
