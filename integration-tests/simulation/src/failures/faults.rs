//! What fails and gets well, and what donors say of it.

use comity_core::inventory::{FaultClass, NodeMap};
use comity_core::{NodeId, Refusal};

use super::federation::Federation;
use super::truth::{Broken, Place};
use crate::random::Random;
use crate::reclaim::{DONORS, cluster, node};

/// Donors that may be silent at a time: of more the brokers would think that it is they who hear badly.
const MOST_SILENT: usize = 2;

impl Federation {
    /// Something fails, or what had failed gets well: the more has failed, the more often.
    pub(super) fn fail_or_heal(&mut self, random: &mut Random) -> Result<(), Refusal> {
        self.report.events += 1;
        let broken = self.truth.broken();
        if random.below(8) < broken.len().min(6) {
            let broken = broken[random.below(broken.len())].clone();
            // Donors are silent for longer than a node restarts, some of them until they are given up.
            if !matches!(broken, Broken::Silent(_)) || random.below(6) == 0 {
                self.heal(broken)?;
            }
        } else {
            self.fail(random)?;
        }
        self.advertise()
    }

    fn heal(&mut self, broken: Broken) -> Result<(), Refusal> {
        match broken {
            Broken::Device(place, index) => _ = self.truth.faults.remove(&(place, index)),
            Broken::NotReady(place) => _ = self.truth.not_ready.remove(&place),
            Broken::Gone(place) => _ = self.truth.gone.remove(&place),
            Broken::Silent(donor) => {
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
        // One device of all falls ill far more often than the others.
        if what >= 8 {
            let (donor, _, _) = DONORS[0];
            return self.fall_ill((cluster(donor)?, NodeId::parse("n0", "node")?), 0, random);
        }
        if self.truth.silent.contains_key(&donor) || self.truth.gone.contains_key(&place) {
            // Of what happens there nobody hears.
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
                    self.truth.node_falls(&place, self.now());
                }
            }
            _ => return self.fall_ill(place, random.below(4), random),
        }
        Ok(())
    }

    fn fall_ill(&mut self, place: Place, index: usize, random: &mut Random) -> Result<(), Refusal> {
        if self.truth.silent.contains_key(&place.0) || self.truth.gone.contains_key(&place) {
            return Ok(());
        }
        let classes = [FaultClass::Degraded, FaultClass::Degraded, FaultClass::Lost, FaultClass::Application];
        let class = classes[random.below(4)];
        let is_new = self.truth.faults.insert((place.clone(), index), class).is_none_or(|was| !was.withdraws());
        // While its node does not answer, nobody counts it.
        if is_new && class.withdraws() && !self.truth.not_ready.contains(&place) {
            self.truth.falls(&place, index, self.now());
        }
        Ok(())
    }

    /// Each donor that is not silent says what it has.
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
                    device.healthy = !self.truth.is_ill(&place, index);
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
