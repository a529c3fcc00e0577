"""The one error of this package that a user repairs outside the program."""


class DataError(ValueError):
    """Files that are missing, unreadable or not what they should be; the message names them."""
