//! Step `probe`: the origin tests a lease and reports it ready. For a namespace it uses the credential once through the
//! tunnel; a virtual node must be ready and have the granted resources.

use comity_agent_delivery::Credential;
use comity_agent_model::lease::Lease;
use comity_agent_state::store::{Change, Store};

use super::report;
use super::terms::{held_credential, origin_lease};
use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::parts::{Access, Connections, Deliveries, Parts};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: tests the credential through the tunnel, and reports the lease ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The lease.
    pub lease: Box<Lease>,
    /// Its peering.
    pub bound: BoundPeering,
}

impl Kind for Probe {
    const NAME: &'static str = "probe";

    fn object(&self) -> String {
        self.lease.id.to_string()
    }

    fn traceparent(&self) -> &str {
        &self.lease.traceparent
    }

    async fn run(&self, Parts { store, deliveries, connections, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, .. } = self;
        let probed = self.probe(store, deliveries, connections).await;
        let Some(probed) = report::or_fail(store, lease, probed).await? else { return Ok(()) };
        let (id, token) = (lease.id, lease.fencing_token);
        let report = move |change: &mut Change<'_>| {
            report::send_ready(change, id, token, probed.namespace, probed.secret_name);
        };
        Ok(store.update(report).await?)
    }
}

/// Names for the report: the lease's namespace or node, and the Secret with its kubeconfig.
struct ProbedLease {
    namespace: String,
    secret_name: String,
}

impl Probe {
    async fn probe(
        &self,
        store: &Store,
        deliveries: &Deliveries,
        connections: &Connections,
    ) -> Result<ProbedLease, StepError> {
        let Self { lease, bound } = self;
        let (credential, _) = held_credential(store, lease.id)?;
        let wanted = origin_lease(lease);
        match (&credential, connections.access(lease.id)) {
            (Credential::Api(credential), Some(Access::Kubeconfig(local_api, _))) => {
                deliveries.origin.probe(&wanted, credential, local_api).await?;
                // Idempotent; it returns the Secret's name.
                let server = deliveries.access.server(local_api);
                let secret_name = deliveries.origin.accept(&wanted, credential, &server).await?.secret_name;
                Ok(ProbedLease { namespace: String::new(), secret_name })
            }
            (Credential::VirtualNode(grant), Some(Access::VirtualNode(node))) => {
                let peer = epoch::liqo_peer(store, bound.peering())?;
                deliveries.virtual_nodes()?.origin.probe(&peer, &wanted, grant).await?;
                Ok(ProbedLease { namespace: node, secret_name: String::new() })
            }
            _ => Err(StepError::Gone("the objects made for the credential")),
        }
    }
}
