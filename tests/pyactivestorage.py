#!/usr/bin/env python3
"""Runs PyActiveStorage's own tests of reductions against a cluster: `tests/pyactivestorage.py [PYTHON]`.

PYTHON is the interpreter of a virtual environment, into which PyActiveStorage and its test requirements are installed from PyPI. Without
PYTHON the script makes an environment. The tests are the unchanged tests of the source package. When a test writes a file to a store, the
file is put into the cluster. The test's configuration (addresses, a user and a password) becomes the defaults of `Active`. TIDEMILL names
the binary.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../bench"))
from local_cluster import Cluster  # noqa: E402

PACKAGES = ["PyActiveStorage==0.8.0", "pytest", "h5py"]
TESTS = ["test_missing.py", "test_byte_order.py", "test_compression.py", "test_bigger_data.py", "test_harness.py"]

CONFTEST = '''
import os, subprocess
import utils
from activestorage.active import Active

URL, COUNT = os.environ["CLUSTER_URL"], [0]

def write_to_storage(path):
    COUNT[0] += 1
    name = f"/{COUNT[0]}-{os.path.basename(path)}"
    binary, server = os.environ["TIDEMILL"], os.environ["CLUSTER_SERVER"]
    subprocess.run([binary, "--server", server, "put", path, name], check=True)
    return f"{URL}/files{name}"

utils.write_to_storage = write_to_storage
utils.get_interface_type = lambda: "https"
init = Active.__init__

def with_addresses(self, dataset, *args, **more):
    if str(dataset).startswith(URL):
        more["storage_options"] = {"username": "root", "password": os.environ["CLUSTER_TOKEN"]}
        more["active_storage_url"] = URL
    init(self, dataset, *args, **more)

Active.__init__ = with_addresses
'''


def main(python):
    with tempfile.TemporaryDirectory(prefix="tidemill-pyactivestorage-") as directory:
        if python is None:
            subprocess.run([sys.executable, "-m", "venv", f"{directory}/venv"], check=True)
            python = f"{directory}/venv/bin/python"
        pip = [python, "-m", "pip", "-q"]
        subprocess.run([*pip, "install", *PACKAGES], check=True)
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", directory, PACKAGES[0]], check=True)
        subprocess.run(["tar", "xzf", *glob.glob(f"{directory}/*.tar.gz"), "-C", directory, "--strip-components=1"], check=True)
        with open(f"{directory}/tests/conftest.py", "w") as file:
            file.write(CONFTEST)
        with Cluster(nodes=2) as cluster:
            token = f"{cluster.directory}/server/token"
            environment = {
                **os.environ,
                "CLUSTER_URL": open(f"{cluster.directory}/server/address").read().strip(),
                "CLUSTER_SERVER": cluster.endpoint,
                "CLUSTER_TOKEN": re.search(r"^token: (.*)$", open(token).read(), re.M)[1],
                "TIDEMILL": cluster.binary,
                # `requests` and `aiohttp` read the CA from these variables.
                "REQUESTS_CA_BUNDLE": token,
                "SSL_CERT_FILE": token,
                # Reads by the client itself (version 1) can only get a password in this way.
                "FSSPEC_HTTP": '{"client_kwargs": {"trust_env": true}}',
                "NETRC": f"{directory}/netrc",
                "PYTHONPATH": f"{directory}/tests",
            }
            with open(f"{directory}/netrc", "w") as file:
                file.write(f"machine 127.0.0.1 login root password {environment['CLUSTER_TOKEN']}\n")
            command = [python, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "addopts=", *TESTS]
            done = subprocess.run(command, cwd=f"{directory}/tests", env=environment)
            sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
