//! Change events: one object after a change, rendered once for all watchers, with the keys that decide who may see it.

use comity_core::State;
use comity_core::reply::Change;
use comity_proto::v1;
use comity_proto::v1::watch_event::Object;
use comity_types::{ClusterId, LeaseId, PeeringId, RequestId, TenantId};

use crate::api::convert::{cluster, lease, peering, request};
use crate::api::viewer::Viewer;

/// One object after a change.
#[derive(Debug, Clone)]
pub struct Event {
    message: v1::WatchEvent,
    subject: Subject,
}

/// Keys of an event that decide who may see it.
#[derive(Debug, Clone)]
enum Subject {
    Request { id: RequestId, tenant: TenantId, origin: ClusterId },
    Lease { request: RequestId, tenant: TenantId, origin: ClusterId, donor: ClusterId },
    Peering { origin: ClusterId, donor: ClusterId },
    Cluster(ClusterId),
}

impl Event {
    pub(super) fn of_cluster(id: ClusterId, object: v1::Cluster, revision: u64) -> Self {
        Self {
            message: v1::WatchEvent { revision, object: Some(Object::Cluster(object)) },
            subject: Subject::Cluster(id),
        }
    }

    fn cluster(state: &State, id: &ClusterId) -> Option<Self> {
        let object = cluster::to_proto(state, id, state.clusters.get(id)?);
        Some(Self::of_cluster(id.clone(), object, state.revision))
    }

    fn request(state: &State, id: RequestId) -> Option<Self> {
        let held = state.requests.get(&id)?;
        let subject = Subject::Request { id, tenant: held.spec.tenant.clone(), origin: held.spec.origin.clone() };
        Some(Self::of(state, Object::Request(request::to_proto(id, held)), subject))
    }

    fn lease(state: &State, id: LeaseId) -> Option<Self> {
        let held = state.leases.get(&id)?;
        let subject = Subject::Lease {
            request: held.request,
            tenant: held.tenant.clone(),
            origin: held.origin.clone(),
            donor: held.placement.donor.clone(),
        };
        Some(Self::of(state, Object::Lease(lease::to_proto(id, held)), subject))
    }

    fn peering(state: &State, id: PeeringId) -> Option<Self> {
        let held = state.peerings.get(&id)?;
        let subject = Subject::Peering { origin: held.origin.clone(), donor: held.donor.clone() };
        Some(Self::of(state, Object::Peering(peering::to_proto(id, held)), subject))
    }

    fn of(state: &State, object: Object, subject: Subject) -> Self {
        Self { message: v1::WatchEvent { revision: state.revision, object: Some(object) }, subject }
    }

    /// The event if `viewer` may see it and it matches `only`: a request and its leases.
    #[must_use]
    pub fn for_watcher(&self, viewer: &Viewer, only: Option<RequestId>) -> Option<v1::WatchEvent> {
        let (visible, about) = match &self.subject {
            Subject::Request { id, tenant, origin } => (viewer.sees_request(tenant, origin), Some(*id)),
            Subject::Lease { request, tenant, origin, donor } => {
                (viewer.sees_lease(tenant, origin, donor), Some(*request))
            }
            Subject::Peering { origin, donor } => (viewer.sees_peering(origin, donor), None),
            Subject::Cluster(id) => (viewer.sees_cluster(id), None),
        };
        let wanted = only.is_none() || only == about;
        (visible && wanted).then(|| self.message.clone())
    }
}

/// Renders changed objects as they are now. Deleted objects ended long before, so they need no event.
pub(super) fn of_changes(state: &State, changes: &[Change]) -> Vec<Event> {
    changes
        .iter()
        .filter_map(|change| match change {
            Change::Cluster(id) => Event::cluster(state, id),
            Change::Request(id) => Event::request(state, *id),
            Change::Lease(id) => Event::lease(state, *id),
            Change::Peering(id) => Event::peering(state, *id),
            Change::Envelopes(_) | Change::Policy | Change::Invite(_) | Change::Revocations => None,
        })
        .collect()
}

/// All clusters, as the first part of a snapshot.
pub fn clusters(state: &State, viewer: &Viewer, only: Option<RequestId>) -> Vec<v1::WatchEvent> {
    let clusters = state.clusters.keys().filter_map(|id| Event::cluster(state, id));
    clusters.filter_map(|event| event.for_watcher(viewer, only)).collect()
}

/// Requests, leases and peerings: the rest of a snapshot. Works on a copy of the state, so that apply does not wait.
pub fn objects(state: &State, viewer: &Viewer, only: Option<RequestId>) -> impl Iterator<Item = v1::WatchEvent> + Send {
    let requests = state.requests.keys().filter_map(|id| Event::request(state, *id));
    let leases = state.leases.keys().filter_map(|id| Event::lease(state, *id));
    let peerings = state.peerings.keys().filter_map(|id| Event::peering(state, *id));
    let all = requests.chain(leases).chain(peerings);
    all.filter_map(move |event| event.for_watcher(viewer, only))
}
