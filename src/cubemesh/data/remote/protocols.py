"""Protocols of a URL: HTTP by the standard library, every other one by fsspec.

fsspec (`s3://`, `gs://`, `az://`, …) is an optional extra.
"""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from cubemesh.data.remote.folder import HTTP, RemoteFolder, check_url
from cubemesh.data.remote.http_folder import HttpFolder
from cubemesh.frameworks.contract.program import NotInstalled


def open_folder(url: str) -> RemoteFolder:
    """The folder at a URL; UsageError as of `check_url`, NotInstalled where fsspec, or its package
    for this protocol, is missing."""
    check_url(url)
    if urlsplit(url).scheme.lower() in HTTP:
        return HttpFolder(url)
    if importlib.util.find_spec("fsspec") is None:
        scheme = url.partition("://")[0]
        raise NotInstalled(
            f"{scheme}:// is read by fsspec, which is not installed. Install it with: "
            "pip install 'cubemesh[remote]'"
        )
    from cubemesh.data.remote.fsspec_folder import FsspecFolder

    return FsspecFolder(url)
