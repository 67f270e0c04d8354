"""The HTTP service behind ``protail serve`` and ``protail demo``."""

from protail.cli.service.answering import Answerer
from protail.cli.service.app import Limits, make_service, run_service
from protail.cli.service.thumbnails import Thumbnails

__all__ = ["Answerer", "Limits", "Thumbnails", "make_service", "run_service"]
