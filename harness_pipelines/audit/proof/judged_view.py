"""A view under audit; errors of the storage become named errors."""

from __future__ import annotations

import pyarrow as pa

from harness_pipelines.lakes.iceberg.read.scan import PinnedView, pinned
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing, LakeUnreadable, ManifestDamaged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.file_digests import FileDamaged


def judged_view(table: TableRow, metadata: str) -> PinnedView:
    """What *metadata* and its manifests name. Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable."""
    try:
        return pinned(metadata)
    except FileNotFoundError as error:
        raise LakeFileMissing(
            f"{table.name}: {metadata}, or a manifest that it names, is gone ({error}); nothing was judged. "
            f"`harness fsck {table.name}` names all that is missing"
        ) from error
    except (ManifestDamaged, FileDamaged, pa.ArrowInvalid) as error:
        raise LakeFileBroken(f"{table.name}: {error}; nothing was judged") from error
    except OSError as error:
        raise LakeUnreadable(f"{table.name}: {metadata} cannot be read: {error}; nothing was judged") from error
