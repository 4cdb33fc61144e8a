from pathlib import Path

import pytest

from hsstore.capture.settings import Refused, Settings, read_settings

ENVIRON = {
    "HSSTORE_SPOOL": "/mnt/spool",
    "HSSTORE_LAYERS": "3, 31,59,final",
    "HSSTORE_BOOT": "b",
}


def test_layers_keep_their_order() -> None:
    expected = Settings(Path("/mnt/spool"), (3, 31, 59, "final"), None, "b")
    assert read_settings(ENVIRON) == expected
    assert read_settings({**ENVIRON, "HSSTORE_SPOOL_BYTES": "12345678901234"}).spool_bytes == (
        12345678901234
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HSSTORE_LAYERS", "", "not set"),
        ("HSSTORE_LAYERS", " ", "not set"),
        ("HSSTORE_LAYERS", "1,,2", "'' is neither"),
        ("HSSTORE_LAYERS", "1,final:pre", "after the final norm only"),
        ("HSSTORE_LAYERS", "1,2,1", "twice"),
        ("HSSTORE_LAYERS", "-1", "neither a number"),
        ("HSSTORE_LAYERS", "01", "neither a number"),
        ("HSSTORE_LAYERS", "1.5", "neither a number"),
        ("HSSTORE_LAYERS", "٣", "neither a number"),
        ("HSSTORE_SPOOL", "spool", "no absolute path"),
        ("HSSTORE_SPOOL_BYTES", "lots", "no number of bytes"),
        ("HSSTORE_SPOOL_BYTES", "-5", "no number of bytes"),
        ("HSSTORE_SPOOL_BYTES", "0", "no room"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(name: str, value: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        read_settings({**ENVIRON, name: value})
    assert "\n" not in str(refused.value)


def test_layers_left_out_are_refused() -> None:
    with pytest.raises(Refused, match="HSSTORE_LAYERS is not set"):
        read_settings({"HSSTORE_SPOOL": "/spool", "HSSTORE_BOOT": "b"})
