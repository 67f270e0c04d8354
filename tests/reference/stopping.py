"""Signals that come at a moment that is counted, where an exception would be ignored."""

import signal


class Trap:
    """Sends a signal in its finaliser, where an exception would be ignored."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


def in_a_finaliser(number=signal.SIGTERM):
    """Send a signal as it may find the garbage collector at work."""
    trap = Trap(number)
    del trap


def at_call(monkeypatch, owner, name, n, happens):
    """Let something happen at the n-th call of a function; list the calls as they come."""
    calls, function = [], getattr(owner, name)

    def counted(*arguments, **options):
        calls.append(name)
        if len(calls) == n:
            happens()
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls
