"""The errors a caller of thalweg may want to catch."""


class ThalwegError(Exception):
    """Base of every error that thalweg raises on purpose."""


class ConfigError(ThalwegError, ValueError):
    """An option or a checkpoint fact has a value that is not supported; the message names field, value and what is."""


class CapacityError(ThalwegError):
    """A fixed resource (blocks, state slots) cannot serve what was asked, now or ever."""


class RequestError(ThalwegError, ValueError):
    """One request is bad; it fails alone, the step and its neighbours go on."""


class CheckpointError(ThalwegError):
    """A checkpoint on disk is incomplete, damaged or of another architecture; the message names file and tensor."""


class BackendUnavailableError(ThalwegError, ImportError):
    """A backend or kernel library is not installed, or its device is not there."""


class PeerDiedError(ThalwegError):
    """Ranks of the job are gone, or do not answer; the message names them."""

    def __init__(self, message: str = "", ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks
        """The missing ranks; empty if it is not known which."""


class InvariantError(ThalwegError):
    """Our own bookkeeping is wrong: a bug in thalweg, never the caller's fault."""
