"""Keeps a checkpoint in an S3 bucket or in a folder. Writing it replaces the old one, or leaves it as it was.

Needs nothing but Python. With boto3, S3Store is `put_object` and `get_object` of `boto3.client("s3")`, which reads the
same environment variables.
"""

import datetime
import hashlib
import hmac
import os
import time
import urllib.error
import urllib.parse
import urllib.request

ATTEMPTS = 5


def open_store(url):
    """A store for `s3://BUCKET/KEY` or for the path of a file."""
    if not url.startswith("s3://"):
        return FileStore(url)
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not bucket or not key:
        raise SystemExit(f"the checkpoint is {url!r}; write s3://BUCKET/KEY or the path of a file")
    return S3Store(bucket, key)


class FileStore:
    """A file. It is replaced by renaming, so a crash never leaves half a checkpoint."""

    def __init__(self, path):
        self.path = path

    def read(self):
        """The content, or None if there is none."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, content):
        part = f"{self.path}.part"
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path)


class S3Store:
    """An object of a bucket. S3 replaces objects atomically."""

    def __init__(self, bucket, key):
        self.region = os.environ.get("AWS_REGION", "us-east-1")
        endpoint = os.environ.get("AWS_ENDPOINT_URL", f"https://s3.{self.region}.amazonaws.com")
        self.host = urllib.parse.urlsplit(endpoint).netloc
        self.path = "/" + urllib.parse.quote(f"{bucket}/{key}")
        self.url = endpoint.rstrip("/") + self.path

    def read(self):
        """The content, or None if there is none."""
        return self._call("GET", b"")

    def write(self, content):
        self._call("PUT", content)

    def _call(self, method, content):
        for attempt in range(1, ATTEMPTS + 1):
            request = urllib.request.Request(self.url, method=method, data=content if method == "PUT" else None)
            for name, value in self._signed(method, content).items():
                request.add_header(name, value)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.read()
            except urllib.error.HTTPError as error:
                if error.code == 404 and method == "GET":
                    return None
                if error.code < 500 or attempt == ATTEMPTS:
                    raise SystemExit(f"{method} {self.url}: {error.code} {error.reason}") from error
            except OSError as error:
                # A new pod's path to the bucket may need a moment.
                if attempt == ATTEMPTS:
                    raise SystemExit(f"{method} {self.url}: {error}") from error
            time.sleep(attempt)

    def _signed(self, method, content):
        """Headers with AWS Signature Version 4."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"host": self.host, "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        canonical = [method, self.path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest]
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}".encode(), "sha256").hex()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return headers
