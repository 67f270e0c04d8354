"""Heads of stage 2 that go on with what a head of stage 1 has learned."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class BuiltHead(nn.Module):
    """Know whether the tensors of stage 1 have come, with ``build_on`` or with a state dict.

    Before that nothing is computed: what is learned for tensors that nobody trained would be
    worthless, and nobody would notice.

    Attributes
    ----------
    stage_1 : tuple of str
        Which heads of stage 1 it takes.
    taken_over : str
        Name in the state dict of one of the tensors that come from there.

    Examples
    --------
    >>> from protail.heads.scaled import ScaledHead
    >>> head = ScaledHead(3, 2)
    >>> try:
    ...     head.check_built()
    ... except ValueError as error:
    ...     print(str(error)[:42])
    ScaledHead has no weights of stage 1 yet;
    >>> _ = head.load_state_dict(head.state_dict())
    >>> head.check_built()
    """

    stage_1: ClassVar[tuple[str, ...]]
    taken_over: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._is_built = False

    def check_built(self) -> None:
        """Raise unless the tensors of stage 1 have come."""
        if not self._is_built:
            raise ValueError(
                f"{type(self).__name__} has no weights of stage 1 yet; expected build_on(head, "
                f"counts) with the head {' or '.join(map(repr, self.stage_1))} of stage 1, or "
                "load_state_dict, first."
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._is_built |= f"{prefix}{self.taken_over}" in state_dict
