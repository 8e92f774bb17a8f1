"""fsspec: ranges of files in object storage and on other remote file systems.

The protocol's own package (s3fs, gcsfs, adlfs, …) must be installed, and finds its credentials as
fsspec documents them. https://filesystem-spec.readthedocs.io
"""

from __future__ import annotations

from typing import Any

import fsspec

from cubemesh.data.remote.folder import ReadDeadline, TemporaryError, resumed
from cubemesh.errors import DataError, UsageError
from cubemesh.frameworks.contract.program import NotInstalled
from cubemesh.untrusted import clean

_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class FsspecFolder:
    """See `RemoteFolder`. Threads may read at the same time."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._system, self._root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            reason = clean(str(error), 200).rstrip(".")
            raise NotInstalled(
                f"{clean(self.url, 200)} needs a package that fsspec does not bring: {reason}."
            ) from error
        except Exception as error:  # whatever a file system raises for its own URLs
            raise UsageError(
                f"data_path={clean(self.url, 200)} cannot be opened: {clean(str(error), 200)}."
            ) from error

    def read(self, name: str, offset: int, size: int) -> bytes:
        """See `RemoteFolder.read`."""
        deadline = ReadDeadline(f"{self.url}/{name}")

        def fetch(done: int, into: bytearray) -> bool:
            if done < size:
                into += self._range(name, offset + done, offset + size, deadline)
            if len(into) < size:
                raise TemporaryError("the file ended early")
            return True

        return resumed(fetch, deadline)

    def read_file(self, name: str, most_bytes: int) -> bytes:
        """See `RemoteFolder.read_file`."""
        deadline = ReadDeadline(f"{self.url}/{name}")

        def fetch(_: int, into: bytearray) -> bool:
            into += self._range(name, None, None, deadline)
            if len(into) > most_bytes:
                raise DataError(f"{self.url}/{name} has more than {most_bytes} bytes.")
            return True

        return resumed(fetch, deadline)

    def _range(
        self, name: str, start: int | None, end: int | None, deadline: ReadDeadline
    ) -> bytes:
        try:
            found: Any = self._system.cat_file(f"{self._root}/{name}", start=start, end=end)
        except _FINAL as error:
            reason = getattr(error, "strerror", None) or "it is missing or not readable"
            raise DataError(f"{self.url}/{name} cannot be read: {reason}.") from error
        except Exception as error:  # of the protocol's package: a lost connection, mostly
            raise TemporaryError(str(error) or type(error).__name__) from error
        deadline.count(len(found))
        return bytes(found)
