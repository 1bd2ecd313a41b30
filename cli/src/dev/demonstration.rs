//! Demonstrates one lease: a tenant submits a request, uses the lease and releases it.

use std::time::{Duration, Instant};

use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::{BrokerChannel, SecretString};
use comity_types::LeaseState;
use kube::config::Kubeconfig;

use super::federation::Federation;
use super::inventories::{DONOR, ORIGIN};
use super::kubernetes_clusters::KubernetesClusters;
use super::patience::{STEP_LIMIT, patiently};
use super::timeline::{Step, Timeline};
use super::{POLL_INTERVAL, lease_check, pod_workload};
use crate::commands::lease::{fetch_kubeconfig, kube_client};
use crate::commands::request::{Change, Follower};
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::views::Lease;

/// GPUs of the demonstrated lease.
pub(super) const GPUS: u32 = 3;
const TENANT: &str = "poly-ml";
/// Limit from submission to an active lease; on real clusters the quota controller alone may take seconds.
const ACTIVE_LIMIT: Duration = STEP_LIMIT;
/// Limit from release until both sides have removed the lease; an API server caches a token for up to 10 s.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);
/// Limit after a restart of both agents until the tunnel of a running lease works again.
const REOPEN_LIMIT: Duration = Duration::from_secs(60);

/// A lease in use.
pub(super) struct LeaseInUse {
    /// The lease.
    pub(super) lease: Lease,
    /// Kubeconfig of its namespace.
    pub(super) kubeconfig: SecretString,
}

/// Submits a request and uses its lease; uses the active lease of an earlier run if there is one.
pub(super) async fn until_used(
    federation: &Federation,
    clusters: Option<&KubernetesClusters>,
    timeline: &mut Timeline,
) -> Result<LeaseInUse, Failure> {
    let alice = federation.session(&federation.alice);
    let (lease, limit) = match kept_lease(&alice, timeline).await? {
        Some(lease) => {
            timeline.note(&format!("{} of the previous run is still active; reopening its tunnel", lease.id));
            (lease, REOPEN_LIMIT)
        }
        // A new lease works at once: the origin probes it before it becomes active.
        None => (submit(&alice, timeline).await?, Duration::ZERO),
    };
    let began = Instant::now();
    let (kubeconfig, detail) = loop {
        match use_lease(federation, clusters, &lease).await {
            Err(_) if began.elapsed() < limit => tokio::time::sleep(POLL_INTERVAL).await,
            outcome => break outcome?,
        }
    };
    timeline.complete(Step::Used, &detail);
    Ok(LeaseInUse { lease, kubeconfig })
}

async fn use_lease(
    federation: &Federation,
    clusters: Option<&KubernetesClusters>,
    lease: &Lease,
) -> Result<(SecretString, String), Failure> {
    let socket = federation
        .agent_socket(ORIGIN)
        .ok_or_else(|| Failure::refused("internal", format!("there is no agent of {ORIGIN}")))?;
    let kubeconfig = fetch_kubeconfig(&socket, &lease.id).await?;
    let client = kube_client(parse_kubeconfig(&kubeconfig)?).await?;
    let namespace = lease.donor_namespace.as_deref().unwrap_or_default();
    let detail = match clusters {
        Some(_) => pod_workload::run(&client, namespace, GPUS).await?,
        None => lease_check::run(&client, namespace, GPUS).await?,
    };
    Ok((kubeconfig, detail))
}

/// The active lease of an earlier run with `--state`.
async fn kept_lease(alice: &Session, timeline: &Timeline) -> Result<Option<Lease>, Failure> {
    let mut client = LeaseServiceClient::new(alice.channel()?);
    let request = v1::ListLeasesRequest {
        consistency: alice.consistency(),
        tenant: TENANT.to_owned(),
        ..v1::ListLeasesRequest::default()
    };
    let listed = patiently(timeline, "a list of leases", async || call(client.list_leases(request.clone())).await);
    let leases = listed.await?.leases;
    Ok(leases
        .into_iter()
        .map(Lease::from)
        .find(|lease| lease.state.is(LeaseState::Active) && lease.origin == ORIGIN && lease.gpus.count == GPUS))
}

async fn submit(alice: &Session, timeline: &mut Timeline) -> Result<Lease, Failure> {
    let spec = v1::RequestSpec {
        tenant: TENANT.to_owned(),
        origin: ORIGIN.to_owned(),
        gpus: Some(v1::GpuDemand {
            class: "frontier".to_owned(),
            share: Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) }),
            count: GPUS,
            cpu_milli_per_gpu: 8_000,
            memory_mib_per_gpu: 64 << 10,
            ..v1::GpuDemand::default()
        }),
        topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
        duration_ms: 3_600_000,
        allow_donors: vec![DONOR.to_owned()],
        delivery: v1::Delivery::Namespace.into(),
        note: "comity dev".to_owned(),
        ..v1::RequestSpec::default()
    };
    let channel = alice.channel()?;
    let mut client = RequestServiceClient::new(channel.clone());
    let submit = v1::SubmitRequestRequest {
        spec: Some(spec),
        idempotency_key: idempotency_key(None),
        queue_anyway: false,
        dry_run: false,
    };
    let submitted = patiently(timeline, "a request", async || call(client.submit_request(submit.clone())).await);
    let request = submitted.await?.request.unwrap_or_default();
    let detail = format!("{}: alice of {TENANT} requests {GPUS} frontier GPUs for {ORIGIN}", request.id);
    timeline.complete(Step::RequestSubmitted, &detail);

    let mut placed = false;
    let follower = Follower::new(channel, &request.id);
    let followed = follower
        .until_active(Some(ACTIVE_LIMIT), |change| {
            if let (Change::Lease(lease), false) = (change, placed) {
                placed = true;
                let placement = lease.placement.as_ref().map(|placement| placement.summary()).unwrap_or_default();
                timeline.complete(Step::Placed, &format!("{}: {placement}", lease.id));
            }
            Ok(())
        })
        .await;
    let followed = match followed {
        Err(failure) if !placed => return Err(with_explanation(&mut client, &request.id, failure).await),
        followed => followed?,
    };
    let lease = followed.lease.clone();
    followed.into_result()?;
    let lease = lease.ok_or_else(|| Failure::refused("internal", "the request is active but has no lease"))?;
    let peering = lease.peering.as_deref().unwrap_or_default();
    timeline.complete(
        Step::Connected,
        &format!("{peering}: keys exchanged, tunnel up, credential sealed for {ORIGIN} and opened"),
    );
    Ok(lease)
}

/// Adds to a failure why the request waits, according to the brokers.
async fn with_explanation(
    client: &mut RequestServiceClient<BrokerChannel>,
    request: &str,
    failure: Failure,
) -> Failure {
    let explain = v1::ExplainRequestRequest { request: request.to_owned(), seek_alternatives: false };
    match call(client.explain_request(explain)).await {
        Ok(why) => {
            let donors = why.donors.iter().map(|donor| format!("{}: {}; {}", donor.donor, donor.reason, donor.unblock));
            let donors: Vec<_> = donors.collect();
            Failure { reason: format!("{}: {} ({})", failure.reason, why.summary, donors.join(" | ")), ..failure }
        }
        Err(_) => failure,
    }
}

/// Releases the lease and checks that its token and namespace are gone.
pub(super) async fn release(
    federation: &Federation,
    clusters: Option<&KubernetesClusters>,
    used: &LeaseInUse,
    timeline: &mut Timeline,
) -> Result<(), Failure> {
    let alice = federation.session(&federation.alice);
    let mut client = LeaseServiceClient::new(alice.channel()?);
    let id = &used.lease.id;
    let request = v1::ReleaseLeaseRequest { lease: id.clone(), idempotency_key: idempotency_key(None) };
    patiently(timeline, "a release", async || call(client.release_lease(request.clone())).await).await?;
    let began = Instant::now();
    let late = |state: &str| Failure::unavailable(format!("{id} {state} {CLEAN_LIMIT:?} after its release"));
    loop {
        let request = v1::GetLeaseRequest { lease: id.clone(), consistency: alice.consistency() };
        let read = patiently(timeline, "a lease", async || call(client.get_lease(request.clone())).await);
        let lease = Lease::from(read.await?.lease.unwrap_or_default());
        if lease.state.is(LeaseState::Ended) {
            break;
        }
        if began.elapsed() > CLEAN_LIMIT {
            return Err(late(&format!("is {}", lease.state)));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let namespace = used.lease.donor_namespace.clone().unwrap_or_default();
    // The agent closes the tunnel's port after the last lease, so call the donor directly to test the token itself.
    let donor = federation
        .api_address(DONOR)
        .ok_or_else(|| Failure::refused("internal", format!("there is no agent of {DONOR}")))?;
    let mut kubeconfig = parse_kubeconfig(&used.kubeconfig)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(format!("https://{donor}"));
    }
    let tenant = kube_client(kubeconfig).await?;
    let refusal = loop {
        let answer = match clusters {
            Some(_) => pod_workload::token_refusal(&tenant, &namespace).await,
            None => lease_check::token_refusal(&tenant, &namespace).await,
        };
        match answer {
            Some(how) => break how,
            None if began.elapsed() > CLEAN_LIMIT => return Err(late("still works")),
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    };
    if let Some(clusters) = clusters {
        clusters.wait_for_namespace_removal(&namespace).await?;
    }
    timeline.complete(Step::Released, &format!("removed on both sides; {refusal}"));
    Ok(())
}

fn parse_kubeconfig(kubeconfig: &SecretString) -> Result<Kubeconfig, Failure> {
    Kubeconfig::from_yaml(kubeconfig.expose())
        .map_err(|error| Failure::refused("bad-kubeconfig", format!("the leased kubeconfig cannot be read: {error}")))
}
