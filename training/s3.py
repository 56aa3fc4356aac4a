"""Objects in S3 and in stores that speak its protocol, through s3fs.

Credentials, region and endpoint are those of the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and the like) or
of the machine's role; nothing here takes or keeps them.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from training.credentials import shown
from training.errors import UserError

SCHEME = "s3://"

_READ_AHEAD = 2**23
"""Bytes of one request. More in memory gains nothing, as what comes is parsed slower than it is fetched."""

_SCATTERED = {"block_size": 2**21, "cache_type": "blockcache", "cache_options": {"maxblocks": 64}}
"""For reading at many places in turn, each of which goes on: as many blocks are kept as there may be places."""


@dataclass(frozen=True)
class S3Object:
    """An object, as it was when it was listed.

    Attributes:
        path: `bucket/key`.
        size: Bytes.
        etag: Changes with the content.
    """

    path: str
    size: int
    etag: str

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return SCHEME + self.path

    def open(self, offset: int = 0, is_scattered: bool = False) -> BufferedReader:
        """Open it for reading, over a connection that is mended when it breaks.

        Args:
            offset: Byte to begin at.
            is_scattered: Whether it is read at many places in turn, as the columns of a table are.

        Raises:
            UserError: It cannot be read, or has changed since it was listed. Reading raises what `s3_errors`
                translates.
        """
        with s3_errors(self.address):
            options = _SCATTERED if is_scattered else {"block_size": _READ_AHEAD}
            file = filesystem().open(self.path, "rb", **options)
            if _etag(file.details) != self.etag:
                raise changed(self.address)
            file.seek(offset)
            return BufferedReader(file, 2**20)


def filesystem() -> Any:
    """A file system of s3fs that remembers no listings, for the environment as it is now."""
    return _filesystem(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))))


@functools.lru_cache(maxsize=4)  # making a client takes as long as many requests
def _filesystem(environment: tuple[tuple[str, str], ...]) -> Any:
    import s3fs

    # botocore itself reads but the first.
    region = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")
    # botocore tries again when no connection is made, and s3fs when one breaks.
    return s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        client_kwargs={"region_name": region} if region else {},
        config_kwargs={"retries": {"total_max_attempts": 3}},
    )


def list_objects(address: str) -> list[S3Object]:
    """The object at an address, all below it, or all that a glob matches, sorted by path; empty if there are none.

    Args:
        address: `s3://bucket/key`.

    Raises:
        UserError: The address cannot be looked at.
    """
    path = address.removeprefix(SCHEME)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?|arn:aws.*", path):
        raise UserError(f"'{address}' is not of the form s3://BUCKET/KEY, with a bucket's name in small letters")
    if "?versionId=" in path:
        raise UserError(f"'{address}' names a version, but the newest is read: leave ?versionId=… out")
    with s3_errors(address):
        store = filesystem()
        is_glob = any(character in path for character in "*?[")
        # The name of an object may have these signs too.
        found = (store.glob(path, detail=True) if is_glob else {}) or store.find(path.rstrip("/"), detail=True)
    return [
        S3Object(name, details["size"], _etag(details))
        for name, details in sorted(found.items())
        if details["type"] == "file" and not name.endswith("/")
    ]


def changed(address: str) -> UserError:
    """The error for an object that is no more what it was when the run began."""
    return UserError(f"{address} has changed while it was used: start again when it stays as it is")


@contextlib.contextmanager
def s3_errors(address: str) -> Iterator[None]:
    """Turn errors of s3fs into sentences that name the remedy; a fault of the store itself passes through."""
    from aiohttp import ClientError as ConnectionLost
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConfigNotFound,
        ConfigParseError,
        InvalidRegionError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
    )
    from s3fs.utils import FileExpired

    try:
        yield
    except UserError:
        raise
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise UserError(
            f"there are no credentials for {address}: give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "environment (in a cluster: from a secret), or a role that may read it"
        ) from error
    except FileExpired as error:
        raise changed(address) from error
    except PermissionError as error:
        raise UserError(
            f"access to {address} is refused ({error}): check that the credentials in the environment are valid "
            "and may list and read it"
        ) from error
    except FileNotFoundError as error:
        if _code(error) == "NoSuchBucket":
            raise UserError(f"{address} is in a bucket that does not exist: check its name{_at()}") from error
        raise UserError(f"there is nothing at {address}: check the key, and its capitals{_at()}") from error
    except (ConfigNotFound, ConfigParseError, ProfileNotFound, InvalidRegionError) as error:
        raise UserError(
            f"{address} cannot be looked at with these settings ({error}): correct AWS_PROFILE, AWS_CONFIG_FILE, "
            "AWS_SHARED_CREDENTIALS_FILE or AWS_DEFAULT_REGION"
        ) from error
    except (BotoCoreError, ConnectionLost, TimeoutError) as error:
        raise UserError(
            f"the store of {address} cannot be reached ({type(error).__name__}){_at()}: check the network and "
            "AWS_ENDPOINT_URL, and start again"
        ) from error
    except ValueError as error:
        if "endpoint" not in str(error).lower():
            raise
        raise UserError(
            f"AWS_ENDPOINT_URL is {shown(_endpoint())}, which is not an address: set it to http(s)://HOST"
        ) from error
    except OSError as error:
        if not isinstance(error.__cause__, ClientError) or _status(error) >= 500:
            raise
        raise UserError(
            f"{address} cannot be read ({error}): check its name, the region and AWS_ENDPOINT_URL"
        ) from error


def _etag(details: Any) -> str:
    return str(details["ETag"]).strip('"')


def _code(error: Exception) -> str:
    response: dict[str, Any] = getattr(error.__cause__, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> int:
    response: dict[str, Any] = getattr(error.__cause__, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _at() -> str:
    endpoint = _endpoint()
    return "" if endpoint is None else f" (AWS_ENDPOINT_URL is {shown(endpoint)})"
