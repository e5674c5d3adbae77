"""Removes files of an unpublished graph on filesystems whose removal of a folder also removes its content."""

from pathlib import Path

import pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper

from graphmill.storage.snapshots.garbage import remove_files


def test_a_folder_that_holds_others_files_stays_where_rmdir_is_recursive(tmp_path: Path) -> None:
    filesystem = ArrowFSWrapper(pyarrow.fs.LocalFileSystem())  # like hdfs://, whose delete_dir also removes the content
    folder = tmp_path / "data" / "000001-0123abcd"
    (folder / "part-00000").mkdir(parents=True)
    (folder / "part-00001").mkdir()
    (folder / "journal.json").write_text("{}")
    for name in ("part-00000/nodes.arrow", "part-00001/nodes.arrow", "part-00001/thesis.tex"):
        (folder / name).write_text("x")
    removed, num_bytes, foreign = remove_files(filesystem, str(tmp_path), "data/000001-0123abcd")
    assert (removed, num_bytes, foreign) == (2, 2, ["part-00001/thesis.tex"])
    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [
        "part-00001",
        "part-00001/thesis.tex",
    ]
