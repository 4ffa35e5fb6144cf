"""A backup in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

from rucola.store.tools.check import check
from support.object_store import TableBucket
from support.servers import run
from support.small_store import SmallStore
from support.stores import log_of


@pytest.mark.slow
def test_a_backup_in_an_object_store_is_restored(
    tmp_path: Path, small_store: SmallStore, table_bucket: TableBucket
) -> None:
    access = table_bucket.catalog
    bucket = f"backups-{tmp_path.name.replace('_', '-')}"
    files = S3FileSystem(
        access_key=access["s3.access-key-id"],
        secret_key=access["s3.secret-access-key"],
        endpoint_override=access["s3.endpoint"],
        allow_bucket_creation=True,
    )
    files.create_dir(bucket)
    environment = {
        "AWS_ACCESS_KEY_ID": access["s3.access-key-id"],
        "AWS_SECRET_ACCESS_KEY": access["s3.secret-access-key"],
        "AWS_ENDPOINT_URL": access["s3.endpoint"],
        "AWS_REGION": "us-east-1",
    }
    for _ in range(2):
        for _ in range(50):
            small_store.put(body=b"body" * 50)
        done = run("store", "backup", small_store.path, "--out", f"s3://{bucket}/a", **environment)
        assert done.returncode == 0, done.stderr
    done = run("store", "restore", f"s3://{bucket}/a", tmp_path / "restored", **environment)
    assert done.returncode == 0, done.stderr
    assert log_of(tmp_path / "restored") == log_of(small_store.path)
    assert check(tmp_path / "restored") == []
    lacking = run("store", "restore", f"s3://{bucket}/b", tmp_path / "none", **environment)
    assert (lacking.returncode, f"s3://{bucket}/b" in lacking.stderr) == (1, True)
