"""No test reaches the network: every Python process of the tests imports this file first.

Addresses of this machine are allowed. All others cannot be reached, as where there is no network.
``PROTAIL_TEST_NETWORK`` names a file to which each one that was asked for is added, a line each.
"""

import errno
import os
import sys
from functools import cache

_EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")


@cache
def _is_here(host: str) -> bool:
    """Say whether a name or an address is this machine's own: only then can it be bound."""
    own = getattr(os, "uname", lambda: None)()
    if host in ("", "localhost", own and own.nodename):
        return True
    import ipaddress
    import socket

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def _refuse_others(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _EVENTS:
        return
    host = arguments[0]
    if event != "socket.getaddrinfo":
        address = arguments[1] if len(arguments) > 1 else None
        if not isinstance(address, tuple):  # the name of a file
            return
        host = address[0]
    host = host.decode() if isinstance(host, bytes) else str(host or "")
    if _is_here(host):
        return
    if log := os.environ.get("PROTAIL_TEST_NETWORK"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{event} {host}\n")
    raise OSError(errno.ENETUNREACH, f"tests reach no network; asked for was {host}")


sys.addaudithook(_refuse_others)
