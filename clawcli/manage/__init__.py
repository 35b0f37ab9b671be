"""Verbs that keep data in order: thin over store/."""
