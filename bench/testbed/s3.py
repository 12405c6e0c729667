#!/usr/bin/env python3
"""Minimal S3 server for the benchmarks: a directory's files are the objects of the bucket `bucket`, without authentication. Not for use.

  bench/testbed/s3.py DIRECTORY HOST:PORT
"""
import os
import sys
import xml.sax.saxutils
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 1 << 20


def etag(path):
    about = os.stat(path)
    return f'"{about.st_ino:x}-{about.st_size:x}-{about.st_mtime_ns:x}"'


class Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory = "."

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def path_of(self):
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")
        path = os.path.realpath(os.path.join(self.directory, key))
        return path if path.startswith(os.path.realpath(self.directory) + os.sep) and not key.endswith("/") else None

    def content(self):
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self.list(query.get("prefix", [""])[0])
        path = self.path_of()
        if not path or not os.path.isfile(path):
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag, size = etag(path), os.path.getsize(path)
        if self.headers.get("If-Match", tag) != tag:
            return self.answer(412)
        begin, end, status = 0, size, 200
        if self.headers.get("Range"):
            begin, last = self.headers["Range"].removeprefix("bytes=").split("-")
            begin, end, status = int(begin), min(int(last) + 1, size) if last else size, 206
        self.send_response(status)
        headers = {"Content-Length": end - begin, "ETag": tag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if status == 206:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "HEAD":
            return None
        with open(path, "rb") as file:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(PIECE, end - begin))
                self.wfile.write(piece)
                begin += len(piece)

    do_GET = do_HEAD = content

    def list(self, prefix):
        rows = []
        for above, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(above, name)
                key = os.path.relpath(path, self.directory)
                if key.startswith(prefix):
                    quoted = xml.sax.saxutils.escape(key)
                    rows.append(f"<Contents><Key>{quoted}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                                f"<ETag>{etag(path)}</ETag><Size>{os.path.getsize(path)}</Size></Contents>")
        text = f"<ListBucketResult>{''.join(sorted(rows))}<IsTruncated>false</IsTruncated></ListBucketResult>"
        self.answer(200, text.encode())

    def do_PUT(self):
        path, body = self.path_of(), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not path or "x-amz-copy-source" in self.headers or urlsplit(self.path).query:
            return self.answer(501)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(body)
        self.answer(200, ETag=etag(path))

    def do_DELETE(self):
        path = self.path_of()
        if path and os.path.isfile(path):
            os.remove(path)
        self.answer(204)


def main():
    Objects.directory, address = sys.argv[1], sys.argv[2]
    host, port = address.rsplit(":", 1)
    ThreadingHTTPServer((host, int(port)), Objects).serve_forever()


if __name__ == "__main__":
    main()
