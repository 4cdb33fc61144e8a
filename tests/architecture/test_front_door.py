import importlib

import pytest

import hsstore


def test_all_is_sorted_and_complete() -> None:
    assert hsstore.__all__ == sorted(hsstore._HOMES)
    assert set(hsstore.__all__) <= set(dir(hsstore))


@pytest.mark.parametrize("name", hsstore.__all__)
def test_every_name_comes_from_its_home(name: str) -> None:
    home = importlib.import_module(hsstore._HOMES[name])
    assert getattr(hsstore, name) is getattr(home, name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'hsstore' has no attribute 'fsk'"):
        hsstore.fsk  # noqa: B018 - the access is the test
