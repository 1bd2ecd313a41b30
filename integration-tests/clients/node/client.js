// Calls a Comity broker through Connect for Node: submit, list by pages, watch and resume, and a refused call.
//
//   client.js PROTOCOL BROKER IDENTITY [RUN]
//
// PROTOCOL is `grpc`, or `connect`: then unary calls are JSON over HTTP/1.1. The watch uses gRPC in both, because the
// broker streams through gRPC. BROKER is HOST:PORT. IDENTITY is a directory with cert.pem, key.pem and ca.pem. RUN makes
// idempotency keys unique; without it, the program only lists. Prints one JSON object.

import { readFileSync } from "node:fs";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { RequestService } from "./gen/comity/v1/requests_pb.js";
import { Delivery, RequestState } from "./gen/comity/v1/types_pb.js";
import { WatchService } from "./gen/comity/v1/watch_pb.js";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

const tenant = "poly-ml";
const timeoutMs = 30_000;

// docs: connect
function connect(protocol, broker, identity) {
  const nodeOptions = {
    ca: readFileSync(`${identity}/ca.pem`),
    cert: readFileSync(`${identity}/cert.pem`),
    key: readFileSync(`${identity}/key.pem`),
  };
  const baseUrl = `https://${broker}`;
  const grpc = createGrpcTransport({ baseUrl, nodeOptions });
  const json = createConnectTransport({ baseUrl, nodeOptions, httpVersion: "1.1", useBinaryFormat: false });
  return {
    requests: createClient(RequestService, protocol === "grpc" ? grpc : json),
    watcher: createClient(WatchService, grpc),
  };
}
// docs: end

function demand() {
  return {
    tenant,
    origin: "polytech-campus",
    gpus: {
      class: "frontier",
      share: { kind: { case: "whole", value: {} } },
      count: 1,
      cpuMilliPerGpu: 1000n,
      memoryMibPerGpu: 1024n,
    },
    durationMs: 3_600_000n,
    delivery: Delivery.NAMESPACE,
  };
}

/** The same key returns the same request, so a call may be repeated. */
async function submit(requests, key) {
  const message = { spec: demand(), idempotencyKey: key, queueAnyway: true };
  const reply = await requests.submitRequest(message, { timeoutMs });
  return reply.request.id;
}

/** The ids on each page, and the revision of the last page. */
async function listPages(requests, size) {
  const pages = [];
  let token = "";
  while (true) {
    const reply = await requests.listRequests({ tenant, page: { size, token } }, { timeoutMs });
    pages.push(reply.requests.map((request) => request.id));
    token = reply.page.nextToken;
    if (token === "") return { pages, revision: reply.page.revision };
  }
}

// docs: watch
/** The next `count` changes of requests after `revision`, and the revision to resume from. */
async function watch(watcher, revision, count) {
  const seen = [];
  const stopped = new AbortController();
  const signal = AbortSignal.any([stopped.signal, AbortSignal.timeout(timeoutMs)]);
  for await (const event of watcher.watch({ fromRevision: revision }, { signal })) {
    revision = event.revision;
    if (event.object.case === "request") {
      const { id, state } = event.object.value;
      seen.push(`${id} REQUEST_STATE_${RequestState[state]}`);
    }
    if (seen.length === count) break;
  }
  stopped.abort();
  return { seen, revision };
}
// docs: end

// docs: errors
function describe(failure) {
  const error = ConnectError.from(failure);
  const [info] = error.findDetails(ErrorInfoSchema);
  const [bad] = error.findDetails(BadRequestSchema);
  const [retry] = error.findDetails(RetryInfoSchema);
  return {
    code: error.code,
    reason: info?.reason ?? "",
    fields: bad?.fieldViolations.map((violation) => violation.field) ?? [],
    retryAfterMs: retry?.retryDelay ? durationMs(retry.retryDelay) : null,
  };
}
// docs: end

async function onlyList(connectAgain) {
  const refused = await listPages(connectAgain().requests, 500).then(() => null, describe);
  return { refused };
}

async function wholeTour(connectAgain, run) {
  const first = connectAgain();
  const before = await listPages(first.requests, 500);
  const submitted = [];
  for (const number of [1, 2, 3]) submitted.push(await submit(first.requests, `${run}-${number}`));
  const repeated = await submit(first.requests, `${run}-1`);
  const { pages } = await listPages(first.requests, 1);
  const watched = await watch(first.watcher, before.revision, 2);

  const second = connectAgain();
  for (const request of submitted) {
    await second.requests.cancelRequest({ request, idempotencyKey: `${run}-cancel-${request}` }, { timeoutMs });
  }
  const resumed = await watch(second.watcher, watched.revision, 4);
  const refused = await second.requests.submitRequest({}, { timeoutMs }).then(() => null, describe);
  return { submitted, repeated, pages, watched: watched.seen, resumed: resumed.seen, refused };
}

const [protocol, broker, identity, run] = process.argv.slice(2);
const connectAgain = () => connect(protocol, broker, identity);
console.log(JSON.stringify(run ? await wholeTour(connectAgain, run) : await onlyList(connectAgain)));
