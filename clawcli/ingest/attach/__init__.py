"""Attach what became known later to steps: rewards, and sidecars of any name."""
