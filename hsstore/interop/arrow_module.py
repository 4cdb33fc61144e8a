"""pyarrow, by which datasets of Hugging Face are read and written; an extra."""

from typing import Any

from hsstore.errors import MalformedInput

# Of a folder that ``datasets`` saved; it names the Arrow files.
STATE = "state.json"


def arrow_module() -> Any:  # noqa: ANN401 - it has no types
    """The module pyarrow; MalformedInput where it cannot be imported."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.ipc  # noqa: PLC0415 - as above
    except ImportError as error:
        raise MalformedInput(
            f"a dataset of Hugging Face needs pyarrow, which cannot be imported: {error}",
            remedy="pip install 'hsstore[interop]'",
        ) from error
    return pa
