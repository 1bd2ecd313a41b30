//! A recording fake of the broker's side of [`Requests`]: it answers as a broker would, and grants on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::Lease;
use comity_agent_model::lease::placement::Placement;
use comity_agent_model::lease::reclaim::{Reclaim, ReclaimReason};
use comity_agent_workload::burst::{RequestError, Requests};
use comity_proto::v1;
use comity_types::{Delivery, LeaseState, PeeringId};
use futures::future::BoxFuture;
use tokio::sync::watch;

#[derive(Default)]
struct State {
    requests: BTreeMap<String, v1::Request>,
    leases: BTreeMap<String, Lease>,
    keys: BTreeMap<String, (v1::RequestSpec, String)>,
    submissions: usize,
    is_silent: bool,
}

fn lease(id: &str, origin: &str) -> Lease {
    let request = id.replace("lease-", "req-").parse().unwrap();
    Lease::new(id.parse().unwrap(), request, origin.parse().unwrap(), PeeringId(1))
}

/// Clones share their state.
#[derive(Clone)]
pub(crate) struct Broker {
    state: Arc<Mutex<State>>,
    desired: watch::Sender<Update>,
}

impl Broker {
    pub(crate) fn new() -> Self {
        let broker = Self { state: Arc::default(), desired: watch::Sender::new(Update::default()) };
        broker.publish();
        broker
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn publish(&self) {
        let leases = self.state().leases.values().cloned().collect();
        self.desired.send_modify(|update| {
            update.number += 1;
            update.is_live = true;
            let state = DesiredState { revision: update.number, leases, ..DesiredState::default() };
            update.state = Some(Arc::new(state));
        });
    }

    pub(crate) fn desired(&self) -> watch::Receiver<Update> {
        self.desired.subscribe()
    }

    /// Calls of submit that made a new request.
    pub(crate) fn submissions(&self) -> usize {
        self.state().submissions
    }

    pub(crate) fn be_silent(&self, is_silent: bool) {
        self.state().is_silent = is_silent;
    }

    /// Live requests for a namespace.
    pub(crate) fn live(&self, namespace: &str) -> Vec<v1::Request> {
        let is_live = |request: &&v1::Request| {
            matches!(request.state(), v1::RequestState::Queued | v1::RequestState::Placed)
                && request.spec.as_ref().is_some_and(|spec| spec.target_namespace == namespace)
        };
        self.state().requests.values().filter(is_live).cloned().collect()
    }

    /// Places a request: its lease is active at once.
    pub(crate) fn grant(&self, id: &str) -> String {
        let lease_id = id.replace("req-", "lease-");
        {
            let mut state = self.state();
            let request = state.requests.get_mut(id).unwrap();
            request.set_state(v1::RequestState::Placed);
            request.lease.clone_from(&lease_id);
            let spec = request.spec.clone().unwrap();
            let lease = Lease {
                delivery: spec.delivery().try_into().unwrap(),
                tenant: spec.tenant,
                placement: Some(Placement {
                    resource_name: "nvidia.com/gpu".to_owned(),
                    ..Placement::new("institute".parse().unwrap())
                }),
                state: Some(LeaseState::Active),
                expires_at_ms: 4_000_000_000_000,
                donor_ready: true,
                origin_ready: true,
                target_namespace: spec.target_namespace,
                gpus: spec.gpus.map(GpuDemand::from),
                ..lease(&lease_id, &spec.origin)
            };
            state.leases.insert(lease_id.clone(), lease);
        }
        self.publish();
        lease_id
    }

    /// Lends without a request; the lease is active at once.
    pub(crate) fn lend(&self, id: &str, namespace: &str) {
        let lease = Lease {
            placement: Some(Placement::new("institute".parse().unwrap())),
            state: Some(LeaseState::Active),
            target_namespace: namespace.to_owned(),
            delivery: Delivery::VirtualNode,
            ..lease(id, "polytechnic")
        };
        self.state().leases.insert(id.to_owned(), lease);
        self.publish();
    }

    /// Reclaims a lease with this deadline or, with `None`, withdraws the reclaim.
    pub(crate) fn reclaim(&self, lease: &str, deadline_ms: Option<u64>) {
        if let Some(lease) = self.state().leases.get_mut(lease) {
            lease.reclaim = deadline_ms.map(|deadline_ms| Reclaim {
                reason: Some(ReclaimReason::LocalNeed),
                since_ms: deadline_ms - 600_000,
                deadline_ms,
            });
            lease.state = Some(if deadline_ms.is_some() { LeaseState::Reclaiming } else { LeaseState::Active });
            lease.message =
                deadline_ms.map_or_else(String::new, |_| "reclaimed: the donor needs it for local work".to_owned());
        }
        self.publish();
    }

    fn end(&self, id: &str, final_state: v1::RequestState) {
        {
            let mut state = self.state();
            let Some(request) = state.requests.get_mut(id) else { return };
            request.set_state(final_state);
            let lease = request.lease.clone();
            state.leases.remove(&lease);
        }
        self.publish();
    }

    fn answer(&self) -> Result<(), RequestError> {
        if self.state().is_silent { Err(RequestError::Unavailable("silent".to_owned())) } else { Ok(()) }
    }
}

impl Requests for Broker {
    fn submit(&self, spec: v1::RequestSpec, key: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        Box::pin(async move {
            self.answer()?;
            let mut state = self.state();
            if let Some((before, id)) = state.keys.get(&key) {
                assert_eq!(*before, spec, "key {key} was used for another request");
                return Ok(state.requests[id].clone());
            }
            state.submissions += 1;
            let id = format!("req-{}", state.submissions);
            let request = v1::Request {
                id: id.clone(),
                spec: Some(spec.clone()),
                state: v1::RequestState::Queued.into(),
                message: "every donor's GPUs are taken".to_owned(),
                ..v1::Request::default()
            };
            state.keys.insert(key, (spec, id.clone()));
            state.requests.insert(id, request.clone());
            Ok(request)
        })
    }

    fn cancel(&self, request: String, _: String) -> BoxFuture<'_, Result<(), RequestError>> {
        Box::pin(async move {
            self.answer()?;
            self.end(&request, v1::RequestState::Cancelled);
            Ok(())
        })
    }

    fn release(&self, lease: String, _: String) -> BoxFuture<'_, Result<(), RequestError>> {
        Box::pin(async move {
            self.answer()?;
            self.end(&lease.replace("lease-", "req-"), v1::RequestState::Completed);
            Ok(())
        })
    }

    fn renew(&self, lease: String, _: String) -> BoxFuture<'_, Result<(), RequestError>> {
        Box::pin(async move {
            self.answer()?;
            let reason = format!("{lease} is not renewed in these tests");
            Err(RequestError::Refused { code: "wrong-state".to_owned(), reason })
        })
    }

    fn get(&self, request: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        Box::pin(async move {
            self.answer()?;
            self.state().requests.get(&request).cloned().ok_or(RequestError::NotFound(request))
        })
    }

    fn explain(&self, request: String) -> BoxFuture<'_, Result<v1::ExplainRequestResponse, RequestError>> {
        Box::pin(async move {
            let request = self.get(request).await?;
            let summary = request.message.clone();
            Ok(v1::ExplainRequestResponse { request: Some(request), summary, ..v1::ExplainRequestResponse::default() })
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<v1::Request>, RequestError>> {
        Box::pin(async move {
            self.answer()?;
            let is_live =
                |request: &&v1::Request| matches!(request.state(), v1::RequestState::Queued | v1::RequestState::Placed);
            Ok(self.state().requests.values().filter(is_live).cloned().collect())
        })
    }
}
