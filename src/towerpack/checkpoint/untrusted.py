"""Files that would run code when opened in full."""


class UntrustedFile(ValueError):
    """A file that can only be read by running code that is in it, which towerpack never does."""
