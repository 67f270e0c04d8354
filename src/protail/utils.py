"""What packages built on protail may want too: the words of errors, and files written whole."""

from protail._files import OutputError, new_file, regular
from protail._messages import counted, first_few, not_installed, unknown_name

__all__ = ["OutputError", "counted", "first_few", "new_file", "not_installed"]
__all__ += ["regular", "unknown_name"]
