"""Publishes labels by gRPC, as any language can, with the protocol of crates/wire/proto/labels.proto.

    pip install grpcio grpcio-tools
    python3 -m grpc_tools.protoc -I crates/wire/proto --python_out=. --grpc_python_out=. labels.proto
    python3 by_grpc.py

The program publishes steps and waits for the last label. If the agent or the connection is lost, it sends the unconfirmed labels
again; each label is carried out once.
"""

import os
import subprocess
import time
import uuid

import grpc
import labels_pb2 as pb
import labels_pb2_grpc as service

DIRECTORY = os.environ.get("TIDEMILL_LABELS", f"/dev/shm/tidemill-labels-{os.getuid()}")


def connect():
    """Connects to this user's agent, and starts the agent if none runs."""
    for _ in range(100):
        # Without this option, gRPC would use the path of the socket as the name of the host.
        channel = grpc.insecure_channel(f"unix:{DIRECTORY}/agent.sock", options=[("grpc.default_authority", "localhost")])
        try:
            grpc.channel_ready_future(channel).result(timeout=1)
            return service.LabelsStub(channel)
        except grpc.FutureTimeoutError:
            channel.close()
            subprocess.run([os.environ.get("TIDEMILL", "tidemill"), "async", "agent", "--detach"], check=True)
    raise SystemExit("no agent comes up: see agent.log in " + DIRECTORY)


def publish_all(key, labels):
    """Publishes labels and waits for the last label, which the agent carries out after the labels that it depends on."""
    kept = 0
    while True:
        try:
            stub = connect()
            # The application is registered while this call is open.
            registered = stub.Register(pb.RegisterRequest(name="example", key=key))
            known = next(registered).published
            if known < kept:
                raise SystemExit(f"no connection for a minute: the agent has carried out the published labels up to {kept}, and perhaps later ones")
            kept = known
            batches = (pb.Batch(key=key, labels=[label]) for label in labels[kept:])
            for answer in stub.Publish(batches):
                kept = answer.published
            last = labels[-1].number
            while True:
                reply = stub.Wait(pb.WaitRequest(key=key, labels=[last], wait_ns=60_000_000_000))
                for outcome in reply.outcomes:
                    registered.cancel()
                    return outcome
        except (grpc.RpcError, StopIteration) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else None
            if code not in (None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
            time.sleep(0.1)


def main():
    steps = [pb.Label(number=n, type=pb.Label.APPEND, path="tidemill:/steps", data=b"step %d\n" % n, forget=True) for n in range(1, 101)]
    steps.append(pb.Label(number=101, type=pb.Label.READ, path="tidemill:/steps", size=1 << 20))
    outcome = publish_all(uuid.uuid4().hex, steps)
    if outcome.errno:
        raise SystemExit(outcome.error)
    print(outcome.data.decode(), end="")


if __name__ == "__main__":
    main()
