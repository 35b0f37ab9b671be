"""The command line: flags to configurations, reports to words. The only layer that prints."""
