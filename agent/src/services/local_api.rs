//! HTTP over a Unix socket in the state directory, for people and tools on this host: `GET /v1/status`,
//! `GET /v1/devices`, `GET /v1/leases/{id}/kubeconfig`, and the other clusters below `/v1/peers`. Whoever may open the
//! socket (mode 0600) may read the kubeconfigs, and decides which identity keys count.

mod agent_status;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use comity_agent_fabric::PodNetwork;
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::peering::{Peering, PeeringDirective};
use comity_agent_state::record::{PeerRecord, Records};
use comity_agent_state::store::{Change, StoreError};
use comity_runtime::{ClusterName, IdentityPublicKey, SecretString};
use comity_types::PeeringState;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::devices::DeviceTable;
use crate::keys::audit_anchor;
use crate::keys::continuity::{self, DecisionError};
use crate::reconcile::parts::{Access, Parts, Ranges};
use crate::services::canary::Unproved;
use crate::signed_policy::{SignedPolicy, policy_anchor};

pub use agent_status::Status;

/// Name of the socket in the state directory.
pub const SOCKET: &str = "agent.sock";
/// Most concurrent requests.
const CONCURRENT_REQUESTS: usize = 32;
/// Largest answer that a client accepts: the devices of some thousand nodes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Listening or calling failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalApiError {
    /// The agent cannot listen on the socket.
    #[error("cannot listen on {path}: {source}", path = .path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No agent answers.
    #[error("no agent answers on {path}: {reason}; check that it runs and that this user may open its \
        socket", path = .path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The agent refused the call.
    #[error("{reason}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The agent's reason.
        reason: String,
    },
}

/// The state that is shown.
#[derive(Clone)]
pub struct Shown {
    /// Parts of the agent.
    pub parts: Parts,
    /// The newest desired state.
    pub desired: watch::Receiver<Update>,
    /// Whether the NetworkPolicies of guests are enforced here, in words.
    pub network_policies: &'static str,
    /// Nodes that may not lend yet.
    pub unproved: watch::Receiver<Unproved>,
    /// Devices and their holders.
    pub devices: watch::Receiver<Arc<DeviceTable>>,
}

/// Serves until told to stop.
///
/// # Errors
/// [`LocalApiError::Bind`].
pub fn serve(
    state: &Path,
    shown: Shown,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, LocalApiError> {
    let path = state.join(SOCKET);
    let fail = |source| LocalApiError::Bind { path: path.clone(), source };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        // A killed agent left it; the store's lock ensures that no other agent runs here.
        _ => {}
    }
    // Only the owner can enter the directory, so nobody can connect before the mode is set.
    let listener = UnixListener::bind(&path).map_err(fail)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/devices", get(devices))
        .route("/v1/leases/{id}/kubeconfig", get(kubeconfig))
        .route("/v1/peers", get(peers))
        .route("/v1/peers/{cluster}", delete(forget_peer))
        .route("/v1/peers/{cluster}/accept", post(accept_peer))
        .route("/v1/audit-anchor", delete(forget_audit_anchor))
        .route("/v1/signed-policy", delete(forget_signed_policy))
        .layer(GlobalConcurrencyLimitLayer::new(CONCURRENT_REQUESTS))
        .with_state(shown);
    Ok(tokio::spawn(async move {
        tokio::select! {
            served = axum::serve(listener, router).into_future() => if let Err(error) = served {
                tracing::error!(%error, "the local API ended");
            },
            () = stop.cancelled() => {}
        }
        // If the removal fails, the next start removes the socket.
        let _ = std::fs::remove_file(&path);
    }))
}

async fn status(State(shown): State<Shown>) -> Json<Status> {
    let Shown { parts, desired, network_policies, unproved, devices } = shown;
    let Parts {
        member, store, tunnels, deliveries, connections, networks, remap_book, failures, signed_policy, ..
    } = parts;
    let missing_policies = deliveries.guest_policies.borrow().clone().into_iter();
    let records = store.records();
    let (connected, revision, peerings) = {
        let update = desired.borrow();
        let state = update.state.as_deref();
        (update.is_live, state.map_or(0, |state| state.revision), state.map(described_peerings).unwrap_or_default())
    };
    let lent = records.donors.values().filter(|record| !record.removed);
    let borrowed = connections.accesses().into_iter().map(|(id, access)| {
        let what = match access {
            Access::Kubeconfig(local_api, _) => local_api.to_string(),
            Access::VirtualNode(node) => format!("node {node}"),
        };
        (id.to_string(), what)
    });
    Json(Status {
        cluster: member.cluster.clone(),
        federation: member.federation.clone(),
        identity_key: member.identity.public().to_string(),
        connected,
        revision,
        outbox: records.outbox.len(),
        lent_gpu_milli: records.lent_milli(),
        tunnels: tunnels.epochs().into_iter().map(|(peering, epoch)| (peering.to_string(), epoch)).collect(),
        networks: networks
            .borrow()
            .iter()
            .map(|(peering, seen)| (peering.to_string(), seen.status.summary()))
            .collect(),
        remapped: remapped(&remap_book.subscribe().borrow()),
        lent: lent.map(|record| (record.lease.to_string(), record.namespace.clone().unwrap_or_default())).collect(),
        borrowed: borrowed.collect(),
        network_policies: network_policies.to_owned(),
        missing_policies: missing_policies.map(|(policy, reason)| (policy.to_owned(), reason)).collect(),
        unproved: BTreeMap::clone(&unproved.borrow()),
        device_readers: devices.borrow().readers(),
        refused_identities: refused_identities(&records),
        peerings,
        failed_handshakes: failures.handshakes(),
        failed_steps: failures.steps(),
        refused_offer: failures.refused_offer(),
        audit_anchor: audit_anchor::anchor(&store).ok().flatten().map(|anchor| anchor.to_string()),
        refused_audit_head: failures.refused_audit_head(),
        signed_policy: signed_policy.borrow().described(),
        refused_policy: signed_policy.borrow().objection(),
        refused_reports: failures.refused(),
    })
}

fn described_peerings(state: &DesiredState) -> BTreeMap<String, String> {
    let described = |directive: &PeeringDirective| {
        let Peering { id, state, epoch, .. } = &directive.peering;
        let state = state.map_or("unknown", PeeringState::as_str);
        (id.to_string(), format!("{state}, epoch {epoch}"))
    };
    state.peerings.iter().map(described).collect()
}

async fn devices(State(shown): State<Shown>) -> Json<DeviceTable> {
    Json(DeviceTable::clone(&shown.devices.borrow()))
}

fn remapped(Ranges(ranges): &Ranges) -> BTreeMap<String, BTreeMap<String, String>> {
    let shown = |network: &PodNetwork| (network.there.to_string(), network.here.to_string());
    ranges.iter().map(|(cluster, networks)| (cluster.clone(), networks.iter().map(shown).collect())).collect()
}

async fn kubeconfig(State(shown): State<Shown>, axum::extract::Path(lease): axum::extract::Path<String>) -> Response {
    let access = lease.parse().ok().and_then(|lease| shown.parts.connections.access(lease));
    match access {
        Some(Access::Kubeconfig(_, kubeconfig)) => {
            ([(header::CONTENT_TYPE, "application/yaml")], kubeconfig.expose().clone()).into_response()
        }
        Some(Access::VirtualNode(node)) => {
            let reason = format!(
                "{lease} is delivered as node {node} of this cluster and has no kubeconfig of its own: pods that \
                 request its GPUs run there; see `kubectl get node {node}`\n"
            );
            (StatusCode::CONFLICT, reason).into_response()
        }
        None => {
            let lease: String = lease.chars().take(64).collect();
            let reason = format!("{lease:?} is not a lease that this agent has connected; see `comity lease show`\n");
            (StatusCode::NOT_FOUND, reason).into_response()
        }
    }
}

fn refused_identities(records: &Records) -> BTreeSet<String> {
    let refused = records.peers.values().filter(|peer| peer.refused.is_some());
    refused.map(|peer| peer.cluster.clone()).collect()
}

async fn peers(State(shown): State<Shown>) -> Json<Vec<PeerRecord>> {
    Json(shown.parts.store.records().peers.values().map(|peer| PeerRecord::clone(peer)).collect())
}

async fn accept_peer(
    State(shown): State<Shown>,
    axum::extract::Path(cluster): axum::extract::Path<String>,
    Json(key): Json<IdentityPublicKey>,
) -> Response {
    let now_ms = shown.parts.clock.unix_ms();
    let update = move |change: &mut Change<'_>| continuity::accept(change, &cluster, key, now_ms);
    let decided = decision(shown.parts.store.update(update).await);
    if let Ok(peer) = &decided {
        tracing::warn!(cluster = peer.cluster, key = %peer.identity_key, "a person accepted an identity key");
    }
    decided.map(Json).into_response()
}

async fn forget_peer(
    State(shown): State<Shown>,
    axum::extract::Path(cluster): axum::extract::Path<String>,
) -> Response {
    let name = cluster.clone();
    let forgotten = decision(shown.parts.store.update(move |change| continuity::forget(change, &name)).await);
    if forgotten.is_ok() {
        tracing::warn!(cluster, "a person let this agent forget a cluster");
    }
    forgotten.map(Json).into_response()
}

async fn forget_audit_anchor(State(shown): State<Shown>) -> Response {
    let forgotten = audit_anchor::forget(&shown.parts.store).await;
    if forgotten.is_ok() {
        shown.parts.failures.set_refused_audit_head(None);
        tracing::warn!("a person let this agent forget the anchor of the audit log");
    }
    forgotten.map(Json).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())).into_response()
}

async fn forget_signed_policy(State(shown): State<Shown>) -> Response {
    let _turn = shown.parts.policy_turn.lock().await;
    if let Err(reason) = may_forget(&shown.parts.signed_policy.borrow()) {
        return (StatusCode::CONFLICT, reason).into_response();
    }
    let forgotten = policy_anchor::forget(&shown.parts.store).await;
    if forgotten.is_ok() {
        shown.parts.signed_policy.send_replace(SignedPolicy::default());
        tracing::warn!("a person let this agent forget the signed policy");
    }
    forgotten.map(Json).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())).into_response()
}

/// A pinned commit would be trusted again at the next start, and nothing until then.
fn may_forget(policy: &SignedPolicy) -> Result<(), String> {
    match policy.anchor.as_ref().and_then(|anchor| anchor.pinned) {
        None => Ok(()),
        Some(pinned) => Err(format!(
            "signedPolicy.commit pins {pinned}; set it to a commit of the new history and restart the agent, or remove it, \
             restart the agent and run forget-policy again"
        )),
    }
}

/// The answer to a person's decision.
fn decision<T>(decided: Result<Result<T, DecisionError>, StoreError>) -> Result<T, (StatusCode, String)> {
    let refused = |error: DecisionError| match error {
        DecisionError::Unknown { .. } => (StatusCode::NOT_FOUND, error.to_string()),
        DecisionError::NotShown { .. } => (StatusCode::CONFLICT, error.to_string()),
    };
    decided.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?.map_err(refused)
}

/// Asks the agent behind a socket for a lease's kubeconfig.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn fetch_kubeconfig(socket: &Path, lease: &str) -> Result<SecretString, LocalApiError> {
    let bytes = fetch(socket, &format!("/v1/leases/{lease}/kubeconfig")).await?;
    let reason = "it answered with something that is not text".to_owned();
    String::from_utf8(bytes)
        .map(SecretString::new)
        .map_err(|_| LocalApiError::NoAnswer { path: socket.to_owned(), reason })
}

/// Reads the status of the agent behind a socket.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn fetch_status(socket: &Path) -> Result<Status, LocalApiError> {
    read(socket, fetch(socket, "/v1/status").await?)
}

/// Reads the devices and their holders from the agent behind a socket.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn fetch_devices(socket: &Path) -> Result<DeviceTable, LocalApiError> {
    read(socket, fetch(socket, "/v1/devices").await?)
}

/// Reads the other clusters that the agent behind a socket remembers.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn fetch_peers(socket: &Path) -> Result<Vec<PeerRecord>, LocalApiError> {
    read(socket, fetch(socket, "/v1/peers").await?)
}

/// Lets the agent behind a socket accept an identity key of another cluster.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn accept_identity_key(
    socket: &Path,
    cluster: &ClusterName,
    key: &IdentityPublicKey,
) -> Result<PeerRecord, LocalApiError> {
    let body = serde_json::to_vec(key).expect("a key is a text");
    let request = http::Request::post(format!("/v1/peers/{cluster}/accept"));
    read(socket, call(socket, request.header(header::CONTENT_TYPE, "application/json"), body).await?)
}

/// Lets the agent behind a socket forget another cluster.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn forget_cluster(socket: &Path, cluster: &ClusterName) -> Result<(), LocalApiError> {
    call(socket, http::Request::delete(format!("/v1/peers/{cluster}")), Vec::new()).await.map(drop)
}

/// Lets the agent behind a socket forget the anchor of the brokers' audit log.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn forget_anchor(socket: &Path) -> Result<(), LocalApiError> {
    call(socket, http::Request::delete("/v1/audit-anchor"), Vec::new()).await.map(drop)
}

/// Lets the agent behind a socket forget the signed policy.
///
/// # Errors
/// [`LocalApiError::NoAnswer`], [`LocalApiError::Refused`].
pub async fn forget_policy(socket: &Path) -> Result<(), LocalApiError> {
    call(socket, http::Request::delete("/v1/signed-policy"), Vec::new()).await.map(drop)
}

fn read<T: DeserializeOwned>(socket: &Path, bytes: Vec<u8>) -> Result<T, LocalApiError> {
    serde_json::from_slice(&bytes)
        .map_err(|error| LocalApiError::NoAnswer { path: socket.to_owned(), reason: error.to_string() })
}

async fn fetch(socket: &Path, path: &str) -> Result<Vec<u8>, LocalApiError> {
    call(socket, http::Request::get(path), Vec::new()).await
}

async fn call(socket: &Path, request: http::request::Builder, body: Vec<u8>) -> Result<Vec<u8>, LocalApiError> {
    let fail = |reason: String| LocalApiError::NoAnswer { path: socket.to_owned(), reason };
    let talk = async {
        let stream = UnixStream::connect(socket).await.map_err(|error| fail(error.to_string()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<bytes::Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|error| fail(error.to_string()))?;
        let connection = tokio::spawn(connection);
        let request =
            request.header(header::HOST, "agent").body(Full::from(body)).map_err(|error| fail(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|error| fail(error.to_string()))?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| fail(error.to_string()));
        connection.abort();
        let bytes = body?.to_bytes().to_vec();
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        Err(LocalApiError::Refused {
            status: status.as_u16(),
            reason: String::from_utf8_lossy(&bytes).trim().to_owned(),
        })
    };
    tokio::time::timeout(ANSWER_WITHIN, talk).await.map_err(|_| fail("no answer in time".to_owned()))?
}

#[cfg(test)]
mod tests {
    use comity_agent_state::record::{RefusedKey, Trust};
    use comity_fuzz::fuzz;
    use comity_runtime::{IdentityKey, SeededEntropy};

    use crate::signed_policy::policy_anchor::PolicyAnchor;

    use serde::Serialize;

    use super::*;

    /// Whether a body is a `T`; what was read is written, and reads the same.
    fn is_a<T: DeserializeOwned + Serialize + PartialEq>(body: &[u8]) -> bool {
        match read::<T>(Path::new(SOCKET), body.to_vec()) {
            Ok(value) => {
                let written = serde_json::to_vec(&value).expect("what was read can be written");
                let again = read::<T>(Path::new(SOCKET), written);
                assert!(again.is_ok_and(|again| again == value), "{}", String::from_utf8_lossy(body));
                true
            }
            Err(error) => {
                assert!(error.to_string().contains(SOCKET), "{error}");
                false
            }
        }
    }

    #[test]
    fn a_pinned_policy_is_not_forgotten() {
        let commit = "a".repeat(40).parse().expect("a commit");
        let trusting = |pinned| SignedPolicy {
            anchor: Some(Arc::new(PolicyAnchor {
                commit,
                folder: Default::default(),
                taken_names: BTreeSet::new(),
                pinned,
            })),
            ..SignedPolicy::default()
        };
        assert_eq!((may_forget(&SignedPolicy::default()), may_forget(&trusting(None))), (Ok(()), Ok(())));
        let refused = may_forget(&trusting(Some(commit))).expect_err("it is pinned");
        assert!(refused.contains("signedPolicy.commit pins aaaa") && refused.contains("restart"), "{refused}");
    }

    #[test]
    fn bodies_of_the_local_api() {
        let key = |seed| IdentityKey::generate(&SeededEntropy::new(seed)).public();
        let peer = PeerRecord {
            cluster: "lab".to_owned(),
            identity_key: key(1),
            trust: Trust::FirstUse,
            institution: "poly".to_owned(),
            since_ms: 1,
            had_lease: true,
            refused: Some(RefusedKey { identity_key: key(2), at_ms: 2 }),
        };
        let status = Status {
            identity_key: key(1).to_string(),
            tunnels: BTreeMap::from([("peer-1".to_owned(), 2)]),
            refused_offer: Some("too many nodes".to_owned()),
            ..Status::default()
        };
        let devices = serde_json::json!({
            "readers": { "read": 1, "failed": 0 },
            "nodes": { "n1": { "GPU-1": { "offered": 1, "holders": [{
                "owner": "lease-7", "resource": "nvidia.com/gpu", "unit": "GPU-1::0", "namespace": "a", "name": "train",
            }] } } },
        });
        let valid = [
            serde_json::to_vec(&key(1)),
            serde_json::to_vec(&[peer]),
            serde_json::to_vec(&status),
            serde_json::to_vec(&devices),
        ];
        let valid = valid.map(|body| body.expect("JSON")).to_vec();
        fuzz!("local_api", valid, |body: &[u8]| {
            let read = [
                // What the agent reads, and what it answers.
                is_a::<IdentityPublicKey>(body),
                is_a::<Vec<PeerRecord>>(body),
                is_a::<Status>(body),
                is_a::<DeviceTable>(body),
            ];
            read.contains(&true)
        });
    }
}
