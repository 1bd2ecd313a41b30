//! Makes hardware fail and recover, and advertises the result to the broker.

use comity_core::Refusal;
use comity_core::inventory::{FaultClass, NodeMap};
use comity_types::NodeId;

use super::failing_federation::FailingFederation;
use super::ground_truth::{Failure, Place};
use crate::random::Random;
use crate::reclaim::{DONORS, cluster, node};

/// Maximum number of silent donors: with more, a broker would blame its own network.
const MOST_SILENT: usize = 2;

impl FailingFederation {
    /// Makes something fail or recover; recoveries get likelier with the number of failures.
    pub(super) fn fail_or_recover(&mut self, random: &mut Random) -> Result<(), Refusal> {
        self.report.events += 1;
        let failures = self.truth.failures();
        if random.below(8) < failures.len().min(6) {
            let failures = failures[random.below(failures.len())].clone();
            // Donors stay silent for longer than a node takes to restart, some of them until the broker gives them up.
            if !matches!(failures, Failure::Silent(_)) || random.below(6) == 0 {
                self.recover(failures)?;
            }
        } else {
            self.fail(random)?;
        }
        self.advertise()
    }

    fn recover(&mut self, failures: Failure) -> Result<(), Refusal> {
        match failures {
            Failure::Device(place, index) => _ = self.truth.faults.remove(&(place, index)),
            Failure::NotReady(place) => _ = self.truth.not_ready.remove(&place),
            Failure::Gone(place) => _ = self.truth.gone.remove(&place),
            Failure::Silent(donor) => {
                self.truth.silent.remove(&donor);
                self.broker.mark(vec![donor], Vec::new())?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let (name, nodes, _) = DONORS[random.below(DONORS.len())];
        let donor = cluster(name)?;
        let place: Place = (donor.clone(), NodeId::parse(&format!("n{}", random.below(nodes)), "node")?);
        let what = random.below(16);
        // One device fails far more often than the others.
        if what >= 8 {
            let (donor, _, _) = DONORS[0];
            return self.fail_device((cluster(donor)?, NodeId::parse("n0", "node")?), 0, random);
        }
        if self.truth.silent.contains_key(&donor) || self.truth.gone.contains_key(&place) {
            // The broker would not hear of it.
            return Ok(());
        }
        match what {
            0 if self.truth.silent.len() < MOST_SILENT => {
                self.truth.silent.insert(donor.clone(), self.now());
                self.broker.mark(Vec::new(), vec![donor])?;
            }
            1 => _ = self.truth.gone.insert(place, self.now()),
            2 | 3 => {
                if self.truth.not_ready.insert(place.clone()) {
                    self.truth.record_node_fault(&place, self.now());
                }
            }
            _ => return self.fail_device(place, random.below(4), random),
        }
        Ok(())
    }

    fn fail_device(&mut self, place: Place, index: usize, random: &mut Random) -> Result<(), Refusal> {
        if self.truth.silent.contains_key(&place.0) || self.truth.gone.contains_key(&place) {
            return Ok(());
        }
        let classes = [FaultClass::Degraded, FaultClass::Degraded, FaultClass::Lost, FaultClass::Application];
        let class = classes[random.below(4)];
        let is_new = self.truth.faults.insert((place.clone(), index), class).is_none_or(|was| !was.withdraws());
        // The broker does not count faults on a node that does not answer.
        if is_new && class.withdraws() && !self.truth.not_ready.contains(&place) {
            self.truth.record_device_fault(&place, index, self.now());
        }
        Ok(())
    }

    /// Advertises the current nodes of every donor that is not silent.
    pub(super) fn advertise(&mut self) -> Result<(), Refusal> {
        for (name, count, _) in DONORS {
            let donor = cluster(name)?;
            if self.truth.silent.contains_key(&donor) {
                continue;
            }
            let mut nodes: NodeMap = NodeMap::new();
            for number in 0..count {
                let id = NodeId::parse(&format!("n{number}"), "node")?;
                let place = (donor.clone(), id.clone());
                if self.truth.gone.contains_key(&place) {
                    continue;
                }
                let mut has = node();
                has.ready = !self.truth.not_ready.contains(&place);
                for (index, device) in has.devices.iter_mut().enumerate() {
                    device.fault = self.truth.fault(&place, index);
                    device.healthy = !self.truth.is_failed(&place, index);
                }
                nodes.insert(id, has);
            }
            if self.broker.offered(&donor) != Some(&nodes) {
                self.broker.advertise(&donor, nodes)?;
            }
        }
        Ok(())
    }
}
