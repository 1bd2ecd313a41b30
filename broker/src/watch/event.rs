//! Change events: one object after a change, rendered once for all watchers, with the keys that decide who may see it.

use comity_core::State;
use comity_core::lease::Lease;
use comity_core::peering::Peering;
use comity_core::reply::Change;
use comity_core::request::Request;
use comity_proto::v1;
use comity_proto::v1::watch_event::Object;
use comity_types::{ClusterId, LeaseId, PeeringId, RequestId, TenantId};

use crate::api::convert::{self, lease, peering, request};
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

impl Subject {
    /// Whether a watcher with `viewer` may see it, and it matches `only`: a request and its leases.
    fn is_for(&self, viewer: &Viewer, only: Option<RequestId>) -> bool {
        let (visible, about) = match self {
            Self::Request { id, tenant, origin } => (viewer.sees_request(tenant, origin), Some(*id)),
            Self::Lease { request, tenant, origin, donor } => {
                (viewer.sees_lease(tenant, origin, donor), Some(*request))
            }
            Self::Peering { origin, donor } => (viewer.sees_peering(origin, donor), None),
            Self::Cluster(id) => (viewer.sees_cluster(id), None),
        };
        visible && (only.is_none() || only == about)
    }
}

impl Event {
    pub(super) fn of_cluster(id: ClusterId, object: v1::Cluster, revision: u64) -> Self {
        Self {
            message: v1::WatchEvent { revision, object: Some(Object::Cluster(object)) },
            subject: Subject::Cluster(id),
        }
    }

    fn cluster(state: &State, id: &ClusterId) -> Option<Self> {
        let object = convert::cluster::to_proto(state, id, state.clusters.get(id)?);
        Some(Self::of_cluster(id.clone(), object, state.revision))
    }

    fn request(state: &State, id: RequestId) -> Option<Self> {
        let held = state.requests.get(&id)?;
        Some(Self::of(state, Object::Request(request::to_proto(id, held)), of_request(id, held)))
    }

    fn lease(state: &State, id: LeaseId) -> Option<Self> {
        let held = state.leases.get(&id)?;
        Some(Self::of(state, Object::Lease(lease::to_proto(id, held)), of_lease(held)))
    }

    fn peering(state: &State, id: PeeringId) -> Option<Self> {
        let held = state.peerings.get(&id)?;
        Some(Self::of(state, Object::Peering(peering::to_proto(id, held)), of_peering(held)))
    }

    fn of(state: &State, object: Object, subject: Subject) -> Self {
        Self { message: v1::WatchEvent { revision: state.revision, object: Some(object) }, subject }
    }

    /// The event if `viewer` may see it and it matches `only`: a request and its leases.
    #[must_use]
    pub fn for_watcher(&self, viewer: &Viewer, only: Option<RequestId>) -> Option<v1::WatchEvent> {
        self.subject.is_for(viewer, only).then(|| self.message.clone())
    }
}

fn of_request(id: RequestId, held: &Request) -> Subject {
    Subject::Request { id, tenant: held.spec.tenant.clone(), origin: held.spec.origin.clone() }
}

fn of_lease(held: &Lease) -> Subject {
    Subject::Lease {
        request: held.request,
        tenant: held.tenant.clone(),
        origin: held.origin.clone(),
        donor: held.placement.donor.clone(),
    }
}

fn of_peering(held: &Peering) -> Subject {
    Subject::Peering { origin: held.origin.clone(), donor: held.donor.clone() }
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

/// The clusters that a watcher may see, as the first part of a snapshot.
pub fn visible_clusters(state: &State, viewer: &Viewer, only: Option<RequestId>) -> Vec<ClusterId> {
    let clusters = state.clusters.keys().filter(|id| Subject::Cluster((*id).clone()).is_for(viewer, only));
    clusters.cloned().collect()
}

/// One cluster for a snapshot at `revision`, as it is now or was since: later changes follow as events.
pub fn cluster(state: &State, id: &ClusterId, revision: u64) -> Option<v1::WatchEvent> {
    Event::cluster(state, id).map(|event| v1::WatchEvent { revision, ..event.message })
}

/// Requests, leases and peerings: the rest of a snapshot. Renders only what the watcher may see, from a copy of the
/// state, so that apply does not wait.
pub fn objects(state: &State, viewer: &Viewer, only: Option<RequestId>) -> impl Iterator<Item = v1::WatchEvent> + Send {
    let is_for = move |subject: Subject| subject.is_for(viewer, only);
    let requests = state.requests.iter().filter(move |(id, held)| is_for(of_request(**id, held)));
    let leases = state.leases.iter().filter(move |(_, held)| is_for(of_lease(held)));
    let peerings = state.peerings.iter().filter(move |(_, held)| is_for(of_peering(held)));
    let requests = requests.map(|(id, held)| Object::Request(request::to_proto(*id, held)));
    let leases = leases.map(|(id, held)| Object::Lease(lease::to_proto(*id, held)));
    let peerings = peerings.map(|(id, held)| Object::Peering(peering::to_proto(*id, held)));
    let all = requests.chain(leases).chain(peerings);
    all.map(|object| v1::WatchEvent { revision: state.revision, object: Some(object) })
}
