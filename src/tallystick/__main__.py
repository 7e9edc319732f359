"""``python -m tallystick`` is ``tallystick``."""

from tallystick.cli import main

if __name__ == "__main__":
    main()
