"""Settings: their types, defaults and help; words of the command line to a configuration."""
