//! Checks the invariants of a stable state against the list of failures.

use comity_core::Refusal;
use comity_core::demand::RequestSpec;
use comity_core::lease::Lease;
use comity_types::{ClusterId, LeaseState, NodeId, RequestId};

use super::failing_federation::FailingFederation;
use super::ground_truth::DONOR_LOST_AFTER;
use crate::reclaim::{DONORS, cluster};

impl FailingFederation {
    /// Checks that no lease stays on failed hardware and no affected request waits beside free capacity.
    pub(super) fn check_invariants(&mut self, reserved: &[ClusterId]) -> Result<(), Refusal> {
        let missed = self.broker.state.live_leases().filter(|(_, lease)| self.is_missed(lease)).count();
        self.report.missed += missed as u64;
        let chains = self.broker.state.requests.values().flat_map(|request| request.chains(&self.broker.state));
        self.report.longest_chain =
            self.report.longest_chain.max(chains.map(|chain| chain.len() as u64).max().unwrap_or(0));
        let mut quarantined = 0;
        for (name, count, _) in DONORS {
            let donor = cluster(name)?;
            let mut free: Vec<usize> = Vec::new();
            for number in 0..count {
                let place = (donor.clone(), NodeId::parse(&format!("n{number}"), "node")?);
                let lent = self.broker.state.occupancy().node(&donor, &place.1);
                let is_free = |index: &usize| {
                    let at = u32::try_from(*index).unwrap_or(u32::MAX);
                    self.truth.is_usable(&place, *index, self.now())
                        && !lent.is_some_and(|lent| lent.devices.contains_key(&at))
                };
                free.push((0..4).filter(is_free).count());
                quarantined +=
                    (0..4).filter(|index| self.truth.is_quarantined(&place, *index, self.now())).count() as u64;
            }
            if reserved.contains(&donor) {
                continue;
            }
            let fits = |spec: &RequestSpec| {
                let room = if spec.topology.same_node { free.iter().max().copied() } else { Some(free.iter().sum()) };
                room.unwrap_or(0) >= spec.gpus.count as usize
            };
            let lacks = |id: &&RequestId| {
                let Some(request) = self.broker.state.requests.get(id) else { return false };
                let moves = || {
                    request
                        .chains(&self.broker.state)
                        .flatten()
                        .any(|lease| request.may_replace(&self.broker.state, lease))
                };
                (request.waits() || moves()) && fits(&request.spec)
            };
            self.report.could_have_gone_on += self.affected.iter().filter(lacks).count() as u64;
        }
        self.report.most_quarantined = self.report.most_quarantined.max(quarantined);
        Ok(())
    }

    /// Whether a lease stays on failed hardware.
    fn is_missed(&self, lease: &Lease) -> bool {
        let donor = &lease.placement.donor;
        if matches!(lease.state, LeaseState::Reclaiming | LeaseState::Ending) {
            return false;
        }
        if let Some(since) = self.truth.silent.get(donor) {
            return self.now() - since >= DONOR_LOST_AFTER;
        }
        lease.placement.nodes.iter().any(|(node, part)| {
            let place = (donor.clone(), node.clone());
            if self.truth.gone.contains_key(&place) {
                // The broker waits until the agent has omitted the node for a minute.
                return false;
            }
            let failed = part.devices.keys().any(|index| self.truth.is_failed(&place, *index as usize));
            failed || self.truth.not_ready.contains(&place)
        })
    }
}
