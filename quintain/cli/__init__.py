"""The command line. Commands import their modules when they are called."""
