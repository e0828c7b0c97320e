"""A fake model hub with the part of its HTTP API that huggingface_hub 2.4 calls.

As on the real hub, downloads of large files are redirected to another host. hub_store.py has the
contents of the hub, and the faults that a test can set.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

from hub_store import LFS, Blob, HubStore, Repository

TOKEN = "hf_stand_in"
USER = "owner"
_LICENSES = {"apache-2.0", "mit", "unknown", "other"}
_REPO = r"(?P<name>[^/]+/[^/]+)"


class RefusalError(Exception):
    """The request gets an answer of status 4xx."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class HubServer(HubStore):
    """The running hub: use it by `with HubServer() as hub`, and connect to `hub.url`."""

    def __init__(self) -> None:
        super().__init__()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def storage_url(self) -> str:
        """The same server under another name, which clients take for another host."""
        return f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length") or 0)
        if "/lfs-upload/" in self.path and "upload" in self.hub.break_off:
            self.rfile.read(min(length, self.hub.break_off["upload"]))
            self._hang_up()
            return
        self.body = self.rfile.read(length)
        address = urlsplit(self.path)
        try:
            for methods, pattern, answer in _ROUTES:
                found = re.fullmatch(pattern, address.path)
                if found and self.command in methods.split():
                    parts = {key: unquote(value) for key, value in found.groupdict().items()}
                    answer(self, **parts)
                    return
            raise RefusalError(404, f"the stand-in has no {self.command} {self.path}")
        except RefusalError as refusal:
            headers = {"X-Error-Message": str(refusal)}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            self._json({"error": str(refusal)}, refusal.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815

    def _json(
        self, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._send(json.dumps(value).encode(), status, headers or {})

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(2)

    # Authorization

    def _user(self) -> str | None:
        sent = self.headers.get("Authorization")
        if sent is None:
            return None
        if sent != f"Bearer {TOKEN}":
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return USER

    def _repository(self, name: str, *, write: bool = False, content: bool = False) -> Repository:
        user = self._user()
        repository = self.hub.repositories.get(name)
        owned = user is not None and name.startswith(f"{user}/")
        if repository is None or (repository.private and not owned):
            raise RefusalError(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and not owned:
            raise RefusalError(403, f"You don't have the rights to change {name}")
        if content and repository.gated and not owned:
            raise RefusalError(403 if user else 401, f"Access to {name} is restricted", "GatedRepo")
        return repository

    def _commit_of(self, repository: Repository, revision: str) -> str:
        commit = repository.resolve(revision)
        if commit is None:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # Repositories

    def create(self) -> None:
        wanted = json.loads(self.body)
        name = f"{wanted['organization'] or USER}/{wanted['name']}"
        if self._user() is None:
            raise RefusalError(401, "Authentication required")
        if not name.startswith(f"{USER}/"):
            raise RefusalError(403, f"You don't have the rights to create a model under {name}")
        if name in self.hub.repositories:
            raise RefusalError(409, "You already created this model repo")
        private = wanted.get("private") or wanted.get("visibility") == "private"  # old clients, new
        repository = Repository(private=bool(private))
        repository.commit(
            "main", {".gitattributes": Blob(b"*.onnx filter=lfs\n", False)}, "initial"
        )
        self.hub.repositories[name] = repository
        self._json({"url": f"{self.hub.url}/{name}", "name": name, "id": "1"})

    def info(self, name: str, revision: str = "main") -> None:
        repository = self._repository(name)
        commit = self._commit_of(repository, revision)
        self._json(
            {
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repository.private,
                "gated": "manual" if repository.gated else False,
                "tags": [],
                "siblings": [{"rfilename": path} for path in repository.commits[commit]],
            }
        )

    def tree(self, name: str, revision: str) -> None:
        repository = self._repository(name, content=True)
        commit = self._commit_of(repository, revision)
        entries = []
        for path, blob in repository.commits[commit].items():
            size = len(blob.content)
            entry = {"type": "file", "path": path, "size": size, "oid": blob.git_sha1}
            if blob.lfs:
                entry["lfs"] = {"oid": blob.sha256, "size": size, "pointerSize": 134}
            entries.append(entry)
        self._json(entries)

    def branch(self, name: str, branch: str) -> None:
        repository = self._repository(name, write=True)
        if branch in repository.branches:
            raise RefusalError(409, "Reference already exists")
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        repository.branches[branch] = self._commit_of(repository, start)
        self._json({})

    # Uploads

    def validate_yaml(self) -> None:
        text = json.loads(self.body)["content"]
        block = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
        values = yaml.safe_load(block[1]) if block else None
        errors = [] if isinstance(values, dict) else ["no front matter"]
        values = values or {}
        languages = values.get("language", [])
        languages = [languages] if isinstance(languages, str) else languages
        errors += [f"language {x!r}" for x in languages if not re.fullmatch("[a-z]{2,3}", str(x))]
        if values.get("license", "mit") not in _LICENSES:
            errors.append(f"license {values['license']!r}")
        found = [{"message": error} for error in errors]
        self._json({"errors": found, "warnings": []}, 400 if errors else 200)

    def preupload(self, name: str, revision: str) -> None:
        repository = self._repository(name, write=True)
        tree = repository.commits[self._commit_of(repository, revision)]
        answers = []
        for file in json.loads(self.body)["files"]:
            assert len(base64.b64decode(file["sample"])) <= 512
            lfs = bool(LFS.search(file["path"])) or file["size"] > 10_000_000
            answer = {
                "path": file["path"],
                "uploadMode": "lfs" if lfs else "regular",
                "shouldIgnore": False,
            }
            if file["path"] in tree:
                answer["oid"] = tree[file["path"]].etag
            answers.append(answer)
        self._json({"files": answers, "commitOid": repository.resolve(revision)})

    def lfs_batch(self, name: str) -> None:
        self._repository(name, write=True)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.objects:
                upload = {"href": f"{self.hub.storage_url}/lfs-upload/{wanted['oid']}"}
                verify = {"href": f"{self.hub.url}/{name}.git/info/lfs/verify"}
                answer["actions"] = {"upload": upload, "verify": verify}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str) -> None:
        self._note_leak()
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusalError(400, "BadDigest")
        self.hub.objects[oid] = self.body
        self._send(b"", 200, {"ETag": f'"{oid}"'})

    def lfs_verify(self, name: str) -> None:
        self._repository(name, write=True)
        wanted = json.loads(self.body)
        if len(self.hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
            raise RefusalError(404, "Object not found")
        self._json({})

    def commit(self, name: str, revision: str) -> None:
        repository = self._repository(name, write=True)
        if revision not in repository.branches:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        head, *operations = [json.loads(line) for line in self.body.splitlines()]
        parent = head["value"].get("parentCommit")
        if parent is not None and parent != repository.branches[revision]:
            raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repository.commits[repository.branches[revision]])
        for operation in operations:
            self._apply(tree, operation["key"], operation["value"])
        commit = repository.commit(revision, tree, head["value"]["summary"])
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _apply(self, tree: dict[str, Blob], key: str, value: dict[str, str]) -> None:
        path = value["path"]
        if key == "file":
            tree[path] = Blob(base64.b64decode(value["content"]), False)
        elif key == "lfsFile" and value["oid"] in self.hub.objects:
            tree[path] = Blob(self.hub.objects[value["oid"]], True)
        elif key == "deletedFile" and path in tree:
            del tree[path]
        else:
            raise RefusalError(400, f"cannot do {key} of {path}")

    # Downloads

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name, content=True)
        commit = self._commit_of(repository, revision)
        blob = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if blob is None:
            raise RefusalError(404, f"{path} does not exist", "EntryNotFound")
        if blob.lfs:
            headers |= {
                "X-Linked-ETag": f'"{blob.sha256}"',
                "X-Linked-Size": str(len(blob.content)),
                "Location": f"{self.hub.storage_url}/lfs-download/{name}/{commit}/{path}",
            }
            self._send(b"", 302, headers)
            return
        self._content(path, blob.content, headers | {"ETag": f'"{blob.git_sha1}"'})

    def lfs_download(self, name: str, commit: str, path: str) -> None:
        self._note_leak()
        blob = self.hub.repositories[name].commits[commit][path]
        self._content(path, blob.content, {"ETag": f'"{blob.sha256}"', "Accept-Ranges": "bytes"})

    def _content(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        if path in self.hub.damage:
            content = content[:-1] + bytes([content[-1] ^ 1])
        first, status = 0, 200
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first, status = int(asked[1]), 206
            headers |= {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        limit = self.hub.break_off.get(path)
        if limit is None or self.command == "HEAD":
            self._send(content[first:], status, headers)
            return
        headers |= {"Content-Length": str(len(content) - first)}
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content[first:limit])
        self._hang_up()

    def _note_leak(self) -> None:
        if self.headers.get("Authorization"):
            self.hub.leaked.append(self.path)


_REVISION = r"(?P<revision>[^/]+)"
_ROUTES = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate_yaml),
    ("GET", f"/api/models/{_REPO}", _Handler.info),
    ("GET", f"/api/models/{_REPO}/revision/{_REVISION}", _Handler.info),
    ("GET", f"/api/models/{_REPO}/tree/{_REVISION}", _Handler.tree),
    ("POST", f"/api/models/{_REPO}/branch/(?P<branch>[^/]+)", _Handler.branch),
    ("POST", f"/api/models/{_REPO}/preupload/{_REVISION}", _Handler.preupload),
    ("POST", f"/api/models/{_REPO}/commit/{_REVISION}", _Handler.commit),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("POST", rf"/{_REPO}\.git/info/lfs/verify", _Handler.lfs_verify),
    ("PUT", "/lfs-upload/(?P<oid>[0-9a-f]{64})", _Handler.lfs_upload),
    ("GET HEAD", f"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _Handler.resolve),
    ("GET", f"/lfs-download/{_REPO}/(?P<commit>[0-9a-f]+)/(?P<path>.+)", _Handler.lfs_download),
]
