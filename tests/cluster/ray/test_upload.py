"""An upload has the sources that a job imports, but no data and no tests. If an upload is large, a message reports its size."""

from pathlib import Path

import pytest

from graphmill.cluster.ray.upload import LARGE_BYTES, describe_large_upload
from tests.uploads import DATA, PACKAGES, REPOSITORY, copy_checkout, packed, plant

MOST_FILES, MOST_BYTES = 721, 4_400_000  # measured: 716 files and 4.3 MB; the test adds five files
FOLDERS = ("core", "storage", "samplers", "models", "cluster", "jobs", "recipes")


@pytest.fixture(scope="module")
def of_checkout(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], int]:
    """The files in the upload of a checkout that has been used, and the size of the package in bytes."""
    folder = tmp_path_factory.mktemp("upload")
    checkout = copy_checkout(folder / "checkout")
    plant(checkout, [*DATA, *PACKAGES])
    package = folder / "package.zip"
    return packed(checkout, package), package.stat().st_size


def test_an_upload_of_a_checkout_is_small(of_checkout: tuple[dict[str, int], int]) -> None:
    files, num_bytes = of_checkout
    assert len(files) <= MOST_FILES
    assert max(num_bytes, sum(files.values())) <= MOST_BYTES


def test_it_holds_every_source_of_ours(of_checkout: tuple[dict[str, int], int]) -> None:
    files, _ = of_checkout
    sources = [path for name in FOLDERS for path in (REPOSITORY / name).rglob("*") if path.suffix in (".py", ".yaml")]
    assert len(sources) > 400
    assert {f"graphmill/{path.relative_to(REPOSITORY)}" for path in sources} <= set(files)
    # On a cluster, `python jobs/products_geco.py` works. All other commands are called as `graphmill NAME`.
    sent = ("ingest", "pcqm4m_tokengt", "predict", "products_geco", "sweep")
    trainers = ("train_graphs", "train_links", "train_nodes")
    assert {name for name in files if name.split("/")[0] in FOLDERS} == {f"jobs/{name}.py" for name in sent + trainers}


def test_data_and_tests_stay_and_a_package_named_data_travels(of_checkout: tuple[dict[str, int], int]) -> None:
    files, _ = of_checkout
    assert not [name for name in files if name in DATA or name.startswith(("tests/", "docs/", ".ci/", ".venv"))]
    assert set(PACKAGES) <= set(files)


def test_the_same_of_a_users_project_with_our_ignore_file(tmp_path: Path) -> None:
    project = tmp_path / "project"
    own = ("models/mine.py", "jobs/train.py", "storage/__init__.py", "cluster/__init__.py", "train.py")
    plant(project, [*DATA, *PACKAGES, *own, "tests/test_mine.py"])
    lines, of_this_repository_alone = (REPOSITORY / ".rayignore").read_text().split("\n\n")
    assert "/models" in of_this_repository_alone
    (project / ".rayignore").write_text(lines)
    assert set(packed(project, tmp_path / "package.zip")) == {*PACKAGES, *own, ".rayignore"}


def test_a_large_upload_names_its_largest_files(tmp_path: Path) -> None:
    plant(tmp_path, ["train.py", "__pycache__/train.pyc"])
    assert describe_large_upload(tmp_path) is None
    for name, num_bytes in (("a/features.bin", LARGE_BYTES), ("b.bin", LARGE_BYTES // 4)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with open(tmp_path / name, "wb") as file:
            file.truncate(num_bytes)
    assert describe_large_upload(tmp_path) == (
        "the upload has 12.5 MB in 3 files, the largest a/features.bin (10.0 MB), b.bin (2.5 MB), train.py (0.0 MB); "
        "name in .rayignore what the job does not import"
    )
