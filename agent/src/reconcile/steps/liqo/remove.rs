//! Step `liqo-remove`: removes the network and the tenant or identity.

use std::time::Duration;

use comity_agent_state::record::LiqoRecord;
use comity_agent_state::store::Store;
use comity_types::{PeeringId, Side};

use super::exchange;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Removes the network and the tenant or identity, and forgets the exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoRemove {
    /// The peering.
    pub peering: PeeringId,
}

impl Kind for LiqoRemove {
    const NAME: &'static str = "liqo-remove";

    fn object(&self) -> String {
        exchange::object(self.peering)
    }

    fn deadline(&self) -> Duration {
        // A namespace may take long to go.
        Duration::from_secs(300)
    }

    async fn run(&self, Parts { store, deliveries, .. }: &Parts) -> Result<(), StepError> {
        let records = store.records();
        let Some(record) = records.liqo.get(&self.peering) else { return Ok(()) };
        let nodes = deliveries.virtual_nodes()?;
        if record.network.is_some() {
            leave_network(store, record).await?;
            // The network of two clusters may go on with another peering between them.
            if store.records().network_carrier(&record.liqo_id).is_none() {
                nodes.network.remove(&record.peer()).await?;
            }
        }
        match record.side {
            Side::Donor => nodes.donor.remove_tenant(&record.peer()).await?,
            Side::Origin => nodes.origin.remove_identity(&record.peer()).await?,
        }
        let peering = self.peering;
        Ok(store.update(move |change| change.drop_liqo(peering)).await?)
    }
}

/// Stops the upkeep of the network for this peering.
async fn leave_network(store: &Store, record: &LiqoRecord) -> Result<(), StepError> {
    let mut record = record.clone();
    if let Some(network) = &mut record.network {
        network.leaving = true;
    }
    Ok(store.update(move |change| change.put_liqo(record)).await?)
}
