"""Turn logs of LLM agents into training data, and train on it."""

__version__ = "0.1.0"
