"""Everything on disk: data directories and artefacts. Verbs meet here and nowhere else."""
