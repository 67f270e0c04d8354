"""``python -m protail_paper``: every command of protail and these, where it is not installed."""

from importlib.metadata import entry_points

from protail.cli import app, main
from protail_paper.cli import bench, quickstart

if __name__ == "__main__":
    if not entry_points(group="protail.commands", name="bench"):
        for each in (quickstart.app, bench.app):
            app.registered_commands += each.registered_commands
    main()
