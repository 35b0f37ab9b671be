"""`claw train`: shards and a model in, a run directory out. The only package that imports torch."""

from clawcli.errors import MissingExtraError

try:
    import safetensors  # noqa: F401  the extra is complete or it is not there
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"claw train needs {error.name}, which is not installed.",
        "Install it with: pip install 'clawcli[train]'",
    ) from error
