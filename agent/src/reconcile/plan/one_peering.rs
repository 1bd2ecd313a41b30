//! Steps of one peering.

use std::collections::BTreeSet;

use comity_agent_fabric::MAX_PEERINGS;
use comity_agent_model::envelope::Envelope;
use comity_agent_model::peering::{Peering, PeeringDirective};
use comity_agent_state::record::{PeeringRecord, ReportKey};
use comity_proto::v1;
use comity_types::{PeeringId, PeeringState, Side};

use super::{Snapshot, Step, borrowing};
use crate::keys::bundle::Expected;
use crate::reconcile::envelope::{PROOF, PSK};
use crate::reconcile::steps::liqo::LiqoRemove;
use crate::reconcile::steps::peering::{
    CheckProof, ClosePeering, ConfigureFabric, FailPeering, ForgetPeering, MakeKeys, OpenPsk, ReportEstablished,
    SendProof, SendPsk,
};

pub(super) fn plan(snapshot: &Snapshot<'_>, directive: &PeeringDirective, steps: &mut Vec<Step>) {
    let peering = &directive.peering;
    let side = match snapshot.cluster {
        cluster if cluster == peering.donor.as_str() => Side::Donor,
        cluster if cluster == peering.origin.as_str() => Side::Origin,
        _ => return,
    };
    let this = OnePeering { snapshot, directive, peering, side };
    // A state that this version does not know: nothing is touched.
    let Some(state) = peering.state else { return };
    match state {
        PeeringState::Proposed
        | PeeringState::Keys
        | PeeringState::Authenticating
        | PeeringState::Establishing
        | PeeringState::Established => this.handshake(steps),
        PeeringState::Draining => this.close(steps),
        PeeringState::Failed => this.restore(steps),
        PeeringState::Closed => {}
    }
}

struct OnePeering<'a> {
    snapshot: &'a Snapshot<'a>,
    directive: &'a PeeringDirective,
    peering: &'a Peering,
    side: Side,
}

impl OnePeering<'_> {
    fn key(&self, kind: fn(PeeringId, u32) -> ReportKey) -> ReportKey {
        kind(self.peering.id, self.peering.epoch)
    }

    fn is_reported(&self, kind: fn(PeeringId, u32) -> ReportKey) -> bool {
        self.snapshot.is_reported(&self.key(kind))
    }

    fn fail(&self, code: &'static str, message: &str, steps: &mut Vec<Step>) {
        if !self.is_reported(ReportKey::PeeringFailed) {
            let (peering, epoch) = (self.peering.id, self.peering.epoch);
            steps.push(FailPeering { peering, epoch, code, message: message.to_owned() }.into());
        }
    }

    fn handshake(&self, steps: &mut Vec<Step>) {
        let (id, epoch) = (self.peering.id, self.peering.epoch);
        let shown = match self.side {
            Side::Origin => self.directive.origin_keys.as_ref(),
            Side::Donor => self.directive.donor_keys.as_ref(),
        };
        if self.is_reported(ReportKey::PeeringFailed) {
            return self.restore(steps);
        }
        let Some(record) = self.snapshot.records.peering(id, epoch) else {
            if shown.is_some() {
                self.fail("keys-lost", "this side has lost its keys of this epoch", steps);
            } else if let Some((code, reason)) = borrowing::peer_obstacle(self.snapshot, self.directive, self.side) {
                self.fail(code, &reason, steps);
            } else if self.is_one_too_many() {
                let message = format!("this agent keeps {MAX_PEERINGS} peerings and takes up no other");
                self.fail("too-many-peerings", &message, steps);
            } else {
                steps.push(MakeKeys { peering: id, epoch, side: self.side }.into());
            }
            return;
        };
        match shown {
            None if !self.is_reported(ReportKey::Keys) => {
                steps.push(MakeKeys { peering: id, epoch, side: self.side }.into());
            }
            None => self.restore(steps),
            Some(shown) if prost::Message::encode_to_vec(shown) != record.bundle => {
                self.fail("keys-lost", "the published keys of this epoch are not this side's", steps);
            }
            // Signed endpoints cannot be corrected within an epoch, and where both sides moved neither finds the other.
            Some(shown) if shown.endpoints != self.snapshot.endpoints => {
                self.fail("endpoints-changed", "this side's fabric has other endpoints now", steps);
            }
            Some(shown) if shown.network.as_ref() != self.snapshot.network => {
                self.fail("network-changed", "this side's network has changed", steps);
            }
            Some(_) if self.peering.state == Some(PeeringState::Authenticating) => match self.side {
                Side::Donor => self.authenticate_as_donor(record, steps),
                Side::Origin => self.authenticate_as_origin(record, steps),
            },
            Some(_) if matches!(self.peering.state, Some(PeeringState::Establishing | PeeringState::Established)) => {
                self.establish(record, steps);
            }
            Some(_) => self.restore(steps),
        }
    }

    /// Whether this is a peering beyond those that the fabric can have. One that a broker invents costs the disk space
    /// of its keys until the agent has forgotten it, one after another.
    fn is_one_too_many(&self) -> bool {
        let records = self.snapshot.records;
        let is_new = records.epochs(self.peering.id).next().is_none();
        is_new && records.peerings.keys().map(|(id, _)| id).collect::<BTreeSet<_>>().len() >= MAX_PEERINGS
    }

    fn expected(&self) -> Option<(Expected, Box<v1::KeyBundle>)> {
        let (bundle, cluster, side) = match self.side {
            Side::Donor => (&self.directive.origin_keys, &self.peering.origin, Side::Origin),
            Side::Origin => (&self.directive.donor_keys, &self.peering.donor, Side::Donor),
        };
        let expected = Expected {
            peering: self.peering.id,
            epoch: self.peering.epoch,
            cluster: cluster.to_string(),
            side,
            identity_key: self.directive.peer_identity_key.clone(),
            institution: self.directive.peer_institution.clone(),
        };
        Some((expected, Box::new(bundle.clone()?)))
    }

    fn envelope(&self, step: &str) -> Option<&Envelope> {
        let Peering { id, epoch, .. } = *self.peering;
        let ours = |envelope: &&Envelope| {
            let key = &envelope.key;
            key.peering == id && key.epoch == epoch && key.lease.is_none() && key.step == step
        };
        self.snapshot.desired.envelopes.iter().filter(ours).max_by_key(|envelope| envelope.key.sequence)
    }

    fn authenticate_as_donor(&self, record: &PeeringRecord, steps: &mut Vec<Step>) {
        let Some((expected, bundle)) = self.expected() else { return };
        let (peering, epoch) = (self.peering.id, self.peering.epoch);
        if record.preshared.is_none() || !record.sealed_accepted && !self.is_reported(ReportKey::Psk) {
            steps.push(SendPsk { expected, bundle }.into());
        } else if record.proven {
            if !self.is_reported(ReportKey::Authenticated) {
                steps.push(CheckProof { peering, epoch, envelope: None }.into());
            }
            self.acknowledge_again(PROOF, steps);
        } else if let Some(envelope) = self.envelope(PROOF) {
            steps.push(CheckProof { peering, epoch, envelope: Some(envelope.clone()) }.into());
        } else {
            // The donor's end is up before the origin's first handshake.
            self.configure(record, steps);
        }
    }

    fn authenticate_as_origin(&self, record: &PeeringRecord, steps: &mut Vec<Step>) {
        if record.preshared.is_some() {
            if !record.sealed_accepted && !self.is_reported(ReportKey::Proof) {
                steps.push(SendProof { peering: self.peering.id, epoch: self.peering.epoch }.into());
            }
            self.acknowledge_again(PSK, steps);
        } else if let (Some((expected, bundle)), Some(envelope)) = (self.expected(), self.envelope(PSK)) {
            steps.push(OpenPsk { expected, bundle, envelope: envelope.clone() }.into());
        }
    }

    /// Acknowledges an opened envelope again.
    fn acknowledge_again(&self, step: &str, steps: &mut Vec<Step>) {
        if let Some(envelope) = self.envelope(step) {
            self.snapshot.discard(envelope, steps);
        }
    }

    fn establish(&self, record: &PeeringRecord, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.peering.id, self.peering.epoch);
        if !record.is_complete() {
            return self.fail("keys-lost", "this side has lost the pre-shared key of this epoch", steps);
        }
        self.configure(record, steps);
        if self.tunnel() == Some(epoch)
            && !self.directive.reported_established
            && !self.is_reported(ReportKey::Established)
        {
            steps.push(ReportEstablished { peering, epoch }.into());
        }
        self.acknowledge_again(PSK, steps);
        self.acknowledge_again(PROOF, steps);
        let others = self.snapshot.records.epochs(peering).any(|record| record.epoch != epoch);
        if self.peering.state == Some(PeeringState::Established) && others && self.snapshot.is_live {
            steps.push(ForgetPeering { peering, keep: Some(epoch) }.into());
        }
    }

    fn tunnel(&self) -> Option<u32> {
        self.snapshot.live.tunnels.get(&self.peering.id).copied()
    }

    /// Brings up the tunnel of an epoch, also in place of one with a higher number: otherwise a broker that once named
    /// a huge epoch would keep every later one from its tunnel.
    fn configure(&self, record: &PeeringRecord, steps: &mut Vec<Step>) {
        if record.is_complete() && self.tunnel() != Some(record.epoch) {
            steps.push(ConfigureFabric { peering: record.peering, epoch: record.epoch }.into());
        }
    }

    /// While a new epoch is set up, the previous one's tunnel carries traffic, also after a restart.
    fn restore(&self, steps: &mut Vec<Step>) {
        if self.tunnel().is_some() {
            return;
        }
        if let Some(record) = self.snapshot.records.epochs(self.peering.id).rev().find(|record| record.is_complete()) {
            self.configure(record, steps);
        }
    }

    fn close(&self, steps: &mut Vec<Step>) {
        let (peering, epoch) = (self.peering.id, self.peering.epoch);
        if self.snapshot.records.liqo.contains_key(&peering) {
            // Before the tunnel goes, so that the other side's Liqo sees it.
            steps.push(LiqoRemove { peering }.into());
            return;
        }
        // A broker that is connected and says so has not taken note of an earlier report.
        let is_due = self.snapshot.is_live || self.snapshot.records.closed.get(&peering) != Some(&epoch);
        if is_due && !self.snapshot.is_reported(&ReportKey::Closed(peering)) {
            steps.push(ClosePeering { peering, epoch }.into());
        }
    }
}
