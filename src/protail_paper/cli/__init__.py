"""The commands of the reproduction, which `protail` finds by their entry points."""
