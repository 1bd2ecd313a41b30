#!/usr/bin/env bash
# Calls a Comity broker through grpcurl: submit, list by pages, watch and resume, and a refused call.
#
#   client.sh BROKER IDENTITY [RUN]
#
# BROKER is HOST:PORT. IDENTITY is a directory with cert.pem, key.pem and ca.pem. RUN makes idempotency keys unique;
# without it, the script only lists. Prints one JSON object. Needs grpcurl and jq.
set -euo pipefail

broker=$1 identity=$2 run=${3:-}
tenant=poly-ml

# docs: connect
# Reflection tells grpcurl the messages, so it needs no .proto files.
grpcurl=(grpcurl -cacert "$identity/ca.pem" -cert "$identity/cert.pem" -key "$identity/key.pem" -max-time 30 -format-error)
call() { "${grpcurl[@]}" -d "$2" "$broker" "comity.v1.$1"; }
# docs: end

demand='{
  "tenant": "'$tenant'",
  "origin": "polytech-campus",
  "gpus": {"class": "frontier", "share": {"whole": {}}, "count": 1, "cpuMilliPerGpu": 1000, "memoryMibPerGpu": 1024},
  "durationMs": 3600000,
  "delivery": "DELIVERY_NAMESPACE"
}'

# submit KEY: the same key returns the same request, so a call may be repeated.
submit() {
  call RequestService/SubmitRequest '{"spec": '"$demand"', "idempotencyKey": "'"$1"'", "queueAnyway": true}' |
    jq -r .request.id
}

# list SIZE: one line for each page, with the ids and the revision.
list() {
  local token="" reply
  while
    reply=$(call RequestService/ListRequests '{"tenant": "'$tenant'", "page": {"size": '"$1"', "token": "'"$token"'"}}')
    jq -c '{ids: [.requests[]?.id], revision: .page.revision}' <<<"$reply"
    token=$(jq -r '.page.nextToken // empty' <<<"$reply")
    [ -n "$token" ]
  do :; done
}

# docs: watch
# watch REVISION COUNT: the next changes of requests, and the revision to resume from.
watch() {
  local events
  exec {events}< <(exec "${grpcurl[@]}" -d '{"fromRevision": "'"$1"'"}' "$broker" comity.v1.WatchService/Watch)
  jq -nc --argjson count "$2" \
    '[limit($count; inputs | select(.request))]
      | {seen: map("\(.request.id) \(.request.state)"), revision: last.revision}' <&"$events"
  kill $!
  exec {events}<&-
}
# docs: end

# docs: errors
# describe STATUS: that of a refused call. Without an answer, grpcurl writes text that is no JSON.
describe() {
  jq -c '
    def of(type): .details // [] | map(select(.["@type"] | endswith(type))) | first;
    {
      code,
      reason: (of("google.rpc.ErrorInfo").reason // ""),
      fields: [of("google.rpc.BadRequest").fieldViolations[]?.field],
      retryAfterMs: (of("google.rpc.RetryInfo").retryDelay | if . then (rtrimstr("s") | tonumber * 1000) else null end)
    }' <<<"$1" || { printf '%s\n' "$1" >&2; return 1; }
}
# docs: end

if [ -z "$run" ]; then
  refused=$(call RequestService/ListRequests '{}' 2>&1 >/dev/null || true)
  [ -z "$refused" ] || refused=$(describe "$refused")
  printf '{"refused": %s}\n' "${refused:-null}"
  exit
fi
before=$(list 500 | jq -sr last.revision)
submitted=()
for number in 1 2 3; do submitted+=("$(submit "$run-$number")"); done
repeated=$(submit "$run-1")
pages=$(list 1 | jq -sc 'map(.ids)')
watched=$(watch "$before" 2)
for request in "${submitted[@]}"; do
  call RequestService/CancelRequest '{"request": "'"$request"'", "idempotencyKey": "'"$run-cancel-$request"'"}' >/dev/null
done
resumed=$(watch "$(jq -r .revision <<<"$watched")" 4)
refused=$(describe "$(call RequestService/SubmitRequest '{}' 2>&1 || true)")
jq -nc --arg repeated "$repeated" --argjson pages "$pages" --argjson watched "$watched" --argjson resumed "$resumed" \
  --argjson refused "$refused" '$ARGS.positional as $submitted
    | {$submitted, $repeated, $pages, watched: $watched.seen, resumed: $resumed.seen, $refused}' --args "${submitted[@]}"
