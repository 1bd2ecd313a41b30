//! A transaction on a copy of the records, which tracks what it changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_proto::v1;
use comity_types::{LeaseId, MAX_FENCING_TOKEN_STEP, PeeringId};

use super::MAX_OUTBOX;
use crate::record::{
    DonorRecord, LeasePeer, LiqoRecord, OriginRecord, Outgoing, PeerRecord, PeeringRecord, Records, ReportKey,
};

/// Most epochs of a peering whose keys are kept. An honest broker has two: the one in use and the next.
pub(super) const MAX_EPOCHS: usize = 4;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dirty {
    Peering(PeeringId, u32),
    Donor(LeaseId),
    Origin(LeaseId),
    Peer(String),
    Liqo(PeeringId),
    Closed(PeeringId),
    Outbox(u64),
    Fence,
}

/// A transaction on a copy of the records.
pub struct Change<'a> {
    pub(super) records: Records,
    pub(super) dirty: BTreeSet<Dirty>,
    pub(super) next_id: &'a mut u64,
    pub(super) full: bool,
}

impl Change<'_> {
    /// The records within this transaction.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Inserts or replaces. Of a peering's other epochs the newest with all keys stays, whose tunnel carries traffic, and
    /// the newest of the others, four in all: a broker may name new epochs for ever.
    pub fn put_peering(&mut self, record: PeeringRecord) {
        let (peering, epoch) = (record.peering, record.epoch);
        self.dirty.insert(Dirty::Peering(peering, epoch));
        self.records.peerings.insert((peering, epoch), Arc::new(record));
        let carries = self.records.epochs(peering).rev().find(|record| record.is_complete()).map(|record| record.epoch);
        let all = self.records.epochs(peering).map(|record| record.epoch);
        let spare: Vec<u32> = all.filter(|other| *other != epoch && Some(*other) != carries).collect();
        let surplus = (spare.len() + 2).saturating_sub(MAX_EPOCHS);
        for old in spare.into_iter().take(surplus) {
            self.drop_peering(peering, old);
        }
    }

    /// Changes one that exists; false if it does not.
    pub fn change_peering(&mut self, peering: PeeringId, epoch: u32, change: impl FnOnce(&mut PeeringRecord)) -> bool {
        let Some(mut record) = self.records.peering(peering, epoch).map(|record| PeeringRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_peering(record);
        true
    }

    /// Removes one epoch.
    pub fn drop_peering(&mut self, peering: PeeringId, epoch: u32) {
        if self.records.peerings.remove(&(peering, epoch)).is_some() {
            self.dirty.insert(Dirty::Peering(peering, epoch));
        }
    }

    /// Inserts or replaces. The fence rises to the record's token, unless that is further than a broker that works as it
    /// should would go.
    pub fn put_donor(&mut self, record: DonorRecord) {
        let fence = self.records.fence;
        if record.fencing_token > fence && record.fencing_token <= fence.saturating_add(MAX_FENCING_TOKEN_STEP) {
            self.records.fence = record.fencing_token;
            self.dirty.insert(Dirty::Fence);
        }
        self.note_lease_with(record.peer.as_ref());
        self.dirty.insert(Dirty::Donor(record.lease));
        self.records.donors.insert(record.lease, Arc::new(record));
    }

    /// Changes one that exists; false if it does not.
    pub fn change_donor(&mut self, lease: LeaseId, change: impl FnOnce(&mut DonorRecord)) -> bool {
        let Some(mut record) = self.records.donors.get(&lease).map(|record| DonorRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_donor(record);
        true
    }

    /// Inserts or replaces.
    pub fn put_origin(&mut self, record: OriginRecord) {
        self.note_lease_with(record.peer.as_ref());
        self.dirty.insert(Dirty::Origin(record.lease));
        self.records.origins.insert(record.lease, Arc::new(record));
    }

    /// Changes one that exists; false if it does not.
    pub fn change_origin(&mut self, lease: LeaseId, change: impl FnOnce(&mut OriginRecord)) -> bool {
        let Some(mut record) = self.records.origins.get(&lease).map(|record| OriginRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_origin(record);
        true
    }

    /// Removes both sides of a lease. The fence stays.
    pub fn drop_lease(&mut self, lease: LeaseId) {
        if self.records.donors.remove(&lease).is_some() {
            self.dirty.insert(Dirty::Donor(lease));
        }
        if self.records.origins.remove(&lease).is_some() {
            self.dirty.insert(Dirty::Origin(lease));
        }
    }

    /// A known cluster that has a lease is not replaced by a new one from then on.
    fn note_lease_with(&mut self, peer: Option<&LeasePeer>) {
        let known = peer.and_then(|peer| self.records.peers.get(&peer.cluster));
        if let Some(known) = known.filter(|known| !known.had_lease) {
            let record = PeerRecord { had_lease: true, ..PeerRecord::clone(known) };
            self.put_peer(record);
        }
    }

    /// Inserts or replaces.
    pub fn put_peer(&mut self, record: PeerRecord) {
        self.dirty.insert(Dirty::Peer(record.cluster.clone()));
        self.records.peers.insert(record.cluster.clone(), Arc::new(record));
    }

    /// Forgets a cluster; false if it is unknown.
    pub fn drop_peer(&mut self, cluster: &str) -> bool {
        let was_known = self.records.peers.remove(cluster).is_some();
        if was_known {
            self.dirty.insert(Dirty::Peer(cluster.to_owned()));
        }
        was_known
    }

    /// Inserts or replaces.
    pub fn put_liqo(&mut self, record: LiqoRecord) {
        self.dirty.insert(Dirty::Liqo(record.peering));
        self.records.liqo.insert(record.peering, Arc::new(record));
    }

    /// Forgets Liqo's exchange of a peering.
    pub fn drop_liqo(&mut self, peering: PeeringId) {
        if self.records.liqo.remove(&peering).is_some() {
            self.dirty.insert(Dirty::Liqo(peering));
        }
    }

    /// Remembers that a peering was taken down and that the broker knows it.
    pub fn put_closed(&mut self, peering: PeeringId, epoch: u32) {
        self.records.closed.insert(peering, epoch);
        self.dirty.insert(Dirty::Closed(peering));
    }

    /// Forgets it.
    pub fn drop_closed(&mut self, peering: PeeringId) {
        if self.records.closed.remove(&peering).is_some() {
            self.dirty.insert(Dirty::Closed(peering));
        }
    }

    /// Puts a message into the outbox. It replaces an earlier one on the same subject, unless they are equal.
    pub fn send(&mut self, key: ReportKey, body: v1::agent_message::Body) {
        let earlier: Vec<u64> = self
            .records
            .outbox
            .iter()
            .filter(|(_, outgoing)| outgoing.key == key)
            .map(|(id, outgoing)| (*id, outgoing.message.body.as_ref() == Some(&body)))
            .filter_map(|(id, same)| (!same).then_some(id))
            .collect();
        let same = self
            .records
            .outbox
            .values()
            .any(|outgoing| outgoing.key == key && outgoing.message.body.as_ref() == Some(&body));
        if same {
            return;
        }
        for id in earlier {
            self.unsend(id);
        }
        if self.records.outbox.len() >= MAX_OUTBOX {
            self.full = true;
            return;
        }
        let id = *self.next_id;
        *self.next_id += 1;
        let traceparent = comity_runtime::telemetry::current_traceparent().unwrap_or_default();
        let message = v1::AgentMessage { message_id: id, body: Some(body), traceparent };
        self.records.outbox.insert(id, Arc::new(Outgoing { key, message }));
        self.dirty.insert(Dirty::Outbox(id));
    }

    /// Removes a message from the outbox.
    pub fn unsend(&mut self, id: u64) -> Option<Arc<Outgoing>> {
        let outgoing = self.records.outbox.remove(&id)?;
        self.dirty.insert(Dirty::Outbox(id));
        Some(outgoing)
    }
}
