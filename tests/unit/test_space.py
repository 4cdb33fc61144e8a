import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsstore.errors import MalformedInput
from hsstore.storage.space import Reclaimable, available, reclaimable

KIB = 1024


def taken(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def freed(*paths: Path) -> Reclaimable:
    return reclaimable(paths, paths[0].lstat().st_dev)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of two files, one of them in a folder of its own."""
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "a").write_bytes(bytes(range(1, 256)) * 40)
    (tmp_path / "tree" / "inner" / "b").write_bytes(b"b" * 5000)
    return tmp_path / "tree"


def everything(tree: Path) -> list[Path]:
    return [tree, *tree.rglob("*")]


def test_blocks_reserved_for_root_are_not_available(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block, size, used = 4096, 2_900_000_000_000, 47_000_000_000
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda _: SimpleNamespace(
            f_frsize=block,
            f_blocks=size // block,
            f_bfree=(size - used) // block,
            f_bavail=(size - used - size // 20) // block,
            f_files=1000,
            f_favail=900,
        ),
    )
    space = available(tmp_path)
    assert space.available_bytes == pytest.approx(2_708_000_000_000, abs=block)
    assert space.used_bytes == pytest.approx(used, abs=2 * block)
    assert space.available_bytes < space.total_bytes - space.used_bytes
    assert space.available_inodes == 900


def test_a_filesystem_without_an_inode_count_has_no_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zeros = SimpleNamespace(f_frsize=1, f_blocks=2, f_bfree=1, f_bavail=1, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda _: zeros)
    assert available(tmp_path).available_inodes is None


def test_a_path_that_does_not_exist_yet_is_its_nearest_parent(tmp_path: Path) -> None:
    space = available(tmp_path / "not" / "yet" / "there")
    assert space.path == tmp_path
    assert space.device == tmp_path.stat().st_dev


def test_a_relative_path_is_looked_up_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert available(Path("store")).path == tmp_path
    assert available(Path()).path == tmp_path


def test_a_tree_frees_its_blocks_and_inodes(tree: Path) -> None:
    assert freed(tree) == Reclaimable(taken(*everything(tree)), 4, ())


def test_a_hole_frees_nothing(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert freed(tmp_path / "sparse").bytes < 64 * KIB


def test_paths_named_twice_or_nested_count_once(
    monkeypatch: pytest.MonkeyPatch, tree: Path
) -> None:
    monkeypatch.chdir(tree.parent)
    once = freed(tree)
    again = (tree, tree / "inner", tree / "inner" / "b", Path("tree"), tree / "inner" / "..")
    assert freed(*again) == once
    assert freed(*reversed(again)) == once


def test_a_sibling_with_a_longer_name_is_not_nested(tree: Path) -> None:
    sibling = tree.with_name("tree-2")
    sibling.mkdir()
    assert freed(tree, sibling).inodes == 5


def test_hard_links_count_once_and_only_if_all_go(tree: Path) -> None:
    outside = tree.parent / "outside"
    os.link(tree / "a", tree / "inner" / "a-too")
    assert freed(tree).bytes == taken(*everything(tree)) - taken(tree / "a")
    os.link(tree / "a", outside)
    kept = freed(tree)
    assert kept.bytes == taken(tree, tree / "inner", tree / "inner" / "b")
    assert "hard links" in kept.notes[0]
    assert freed(tree, outside) == Reclaimable(kept.bytes + taken(outside), 4, ())


def test_symbolic_links_are_not_followed(tree: Path) -> None:
    alone = freed(tree)
    elsewhere = tree.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "big").write_bytes(b"x" * 100 * KIB)
    (tree / "link").symlink_to(elsewhere)
    (tree / "loop").symlink_to(tree)
    assert freed(tree).bytes == alone.bytes + taken(tree / "link", tree / "loop")
    named = freed(tree / "link")
    assert named.bytes == taken(tree / "link")
    assert "symbolic link" in named.notes[0]


def test_a_link_on_the_way_to_a_path_is_followed(tree: Path) -> None:
    (tree.parent / "way").symlink_to(tree.parent)
    assert freed(tree.parent / "way" / "tree", tree) == freed(tree)


def test_another_filesystem_frees_nothing_here(tree: Path) -> None:
    found = reclaimable([tree], tree.stat().st_dev + 1)
    assert (found.bytes, found.inodes) == (0, 0)
    assert "another filesystem" in found.notes[0]


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="gone: no such file or folder"):
        reclaimable([tmp_path / "gone"], 0)
