"""Where acting happens."""
