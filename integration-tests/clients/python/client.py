"""Calls a Comity broker through grpcio: submit, list by pages, watch and resume, and a refused call.

    client.py BROKER IDENTITY [RUN]

BROKER is HOST:PORT. IDENTITY is a directory with cert.pem, key.pem and ca.pem. RUN makes idempotency keys unique;
without it, the program only lists. Prints one JSON object.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from comity.v1 import requests_pb2, requests_pb2_grpc, types_pb2, watch_pb2, watch_pb2_grpc

TENANT = "poly-ml"
TIMEOUT_S = 30


# docs: connect
def connect(broker: str, identity: Path) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=(identity / "ca.pem").read_bytes(),
        private_key=(identity / "key.pem").read_bytes(),
        certificate_chain=(identity / "cert.pem").read_bytes(),
    )
    return grpc.secure_channel(broker, credentials)
# docs: end


def demand() -> types_pb2.RequestSpec:
    return types_pb2.RequestSpec(
        tenant=TENANT,
        origin="polytech-campus",
        gpus=types_pb2.GpuDemand(
            **{"class": "frontier"},
            share=types_pb2.Share(whole=types_pb2.Share.Whole()),
            count=1,
            cpu_milli_per_gpu=1000,
            memory_mib_per_gpu=1024,
        ),
        duration_ms=3_600_000,
        delivery=types_pb2.DELIVERY_NAMESPACE,
    )


# docs: submit
def submit(requests: requests_pb2_grpc.RequestServiceStub, key: str) -> str:
    """The same key returns the same request, so a call may be repeated."""
    message = requests_pb2.SubmitRequestRequest(spec=demand(), idempotency_key=key, queue_anyway=True)
    return requests.SubmitRequest(message, timeout=TIMEOUT_S).request.id
# docs: end


# docs: list
def list_pages(requests: requests_pb2_grpc.RequestServiceStub, size: int) -> tuple[list[list[str]], int]:
    """The ids on each page, and the revision of the last page."""
    pages, token = [], ""
    while True:
        message = requests_pb2.ListRequestsRequest(
            tenant=TENANT, page=types_pb2.PageRequest(size=size, token=token)
        )
        reply = requests.ListRequests(message, timeout=TIMEOUT_S)
        pages.append([request.id for request in reply.requests])
        token = reply.page.next_token
        if not token:
            return pages, reply.page.revision
# docs: end


# docs: watch
def watch(watcher: watch_pb2_grpc.WatchServiceStub, revision: int, count: int) -> tuple[list[str], int]:
    """The next `count` changes of requests after `revision`, and the revision to resume from."""
    seen = []
    stream = watcher.Watch(watch_pb2.WatchRequest(from_revision=revision), timeout=TIMEOUT_S)
    for event in stream:
        revision = event.revision
        if event.WhichOneof("object") == "request":
            state = types_pb2.RequestState.Name(event.request.state)
            seen.append(f"{event.request.id} {state}")
        if len(seen) == count:
            break
    stream.cancel()
    return seen, revision
# docs: end


# docs: errors
def describe(error: grpc.RpcError) -> dict:
    refused = {"code": error.code().value[0], "reason": "", "fields": [], "retryAfterMs": None}
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            refused["reason"] = info.reason
        elif detail.Unpack(bad):
            refused["fields"] = [violation.field for violation in bad.field_violations]
        elif detail.Unpack(retry):
            refused["retryAfterMs"] = retry.retry_delay.ToMilliseconds()
    return refused
# docs: end


def refusal(call: Callable[[], object]) -> dict | None:
    try:
        call()
        return None
    except grpc.RpcError as error:
        return describe(error)


def only_list(broker: str, identity: Path) -> dict:
    with connect(broker, identity) as channel:
        requests = requests_pb2_grpc.RequestServiceStub(channel)
        return {"refused": refusal(lambda: list_pages(requests, 500))}


def whole_tour(broker: str, identity: Path, run: str) -> dict:
    with connect(broker, identity) as channel:
        requests = requests_pb2_grpc.RequestServiceStub(channel)
        _, revision = list_pages(requests, 500)
        submitted = [submit(requests, f"{run}-{number}") for number in (1, 2, 3)]
        repeated = submit(requests, f"{run}-1")
        pages, _ = list_pages(requests, 1)
        seen, revision = watch(watch_pb2_grpc.WatchServiceStub(channel), revision, 2)
    with connect(broker, identity) as channel:
        requests = requests_pb2_grpc.RequestServiceStub(channel)
        for number, request in enumerate(submitted):
            message = requests_pb2.CancelRequestRequest(request=request, idempotency_key=f"{run}-cancel-{number}")
            requests.CancelRequest(message, timeout=TIMEOUT_S)
        resumed, _ = watch(watch_pb2_grpc.WatchServiceStub(channel), revision, 4)
        empty = requests_pb2.SubmitRequestRequest()
        refused = refusal(lambda: requests.SubmitRequest(empty, timeout=TIMEOUT_S))
    return {
        "submitted": submitted,
        "repeated": repeated,
        "pages": pages,
        "watched": seen,
        "resumed": resumed,
        "refused": refused,
    }


broker, identity, *run = sys.argv[1:]
print(json.dumps(whole_tour(broker, Path(identity), run[0]) if run else only_list(broker, Path(identity))))
