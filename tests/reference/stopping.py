"""How a command that Ctrl-C stopped may end."""

import signal

# CPython ends by the signal itself where Ctrl-C came while it ran a text of code, as some libraries
# do while they are imported. A shell reports 130 for both.
STOPPED = (130, -signal.SIGINT)
