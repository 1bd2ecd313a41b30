//! The effect of each step on the input of the next plan.

use crate::reconcile::steps::lease::{
    AcceptCredential, AdmitLease, ForgetLease, LeaseStep, OpenCredential, PrepareLease, Probe, RefuseLease,
    RemoveLease, ReopenLease, ReportCheckpointed, ReportLease, ReportUse, SealCredential,
};
use crate::reconcile::steps::peering::{
    CheckProof, ClosePeering, ConfigureFabric, FailPeering, ForgetPeering, MakeKeys, OpenPsk, PeeringStep,
    ReportEstablished, SendProof, SendPsk,
};

use super::fixtures::admitted;
use super::*;

impl Sim {
    /// Applies the effect of the step's executor to the input of a plan.
    pub(super) fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Peering(step) => self.carry_out_peering(step),
            Step::Liqo(step) => self.carry_out_liqo(step),
            Step::Lease(step) => self.carry_out_lease(step),
            Step::DiscardEnvelope(DiscardEnvelope { key }) => self.report(ReportKey::EnvelopeAck(key.clone())),
        }
    }

    fn carry_out_peering(&mut self, step: &PeeringStep) {
        match step {
            PeeringStep::MakeKeys(MakeKeys { peering, epoch, .. }) => {
                self.change_peering(*epoch, |_| {});
                self.report(ReportKey::Keys(*peering, *epoch));
            }
            PeeringStep::SendPsk(SendPsk { expected, .. }) => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.report(ReportKey::Psk(expected.peering, expected.epoch));
            }
            PeeringStep::OpenPsk(OpenPsk { expected, envelope, .. }) => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.opened(envelope);
                self.report(ReportKey::Proof(expected.peering, expected.epoch));
            }
            PeeringStep::SendProof(SendProof { peering, epoch }) => self.report(ReportKey::Proof(*peering, *epoch)),
            PeeringStep::CheckProof(CheckProof { peering, epoch, envelope }) => {
                self.change_peering(*epoch, |record| record.proven = true);
                if let Some(envelope) = envelope {
                    self.opened(envelope);
                }
                self.report(ReportKey::Authenticated(*peering, *epoch));
            }
            PeeringStep::ConfigureFabric(ConfigureFabric { peering, epoch }) => {
                self.live.tunnels.insert(*peering, *epoch);
            }
            PeeringStep::ReportEstablished(ReportEstablished { peering, epoch }) => {
                self.report(ReportKey::Established(*peering, *epoch))
            }
            PeeringStep::FailPeering(FailPeering { peering, epoch, .. }) => {
                self.report(ReportKey::PeeringFailed(*peering, *epoch))
            }
            PeeringStep::ClosePeering(ClosePeering { peering, .. }) => {
                self.live.tunnels.remove(peering);
                self.records.peerings.clear();
                self.report(ReportKey::Closed(*peering));
            }
            PeeringStep::ForgetPeering(ForgetPeering { peering, keep }) => {
                self.records.peerings.retain(|(id, epoch), _| id != peering || *keep == Some(*epoch));
                if keep.is_none() {
                    self.live.tunnels.remove(peering);
                    self.records.closed.remove(peering);
                    self.live.unwanted.remove(&ObjectId::Peering(*peering));
                }
            }
        }
    }

    fn carry_out_lease(&mut self, step: &LeaseStep) {
        match step {
            LeaseStep::AdmitLease(admission @ AdmitLease { lease, fencing_token, .. }) => {
                self.records.fence = self.records.fence.max(*fencing_token);
                self.put_donor(*lease, *fencing_token, |record| {
                    let admitted = admission.record(record.admitted_at_ms);
                    record.peer = admitted.peer;
                    record.capacity = admitted.capacity;
                    record.delivery = admitted.delivery;
                    record.tenant = admitted.tenant;
                    record.class = admitted.class;
                    (record.data, record.purpose) = (admitted.data, admitted.purpose);
                });
            }
            LeaseStep::RefuseLease(RefuseLease { lease, .. }) => self.report(ReportKey::LeaseFailed(*lease)),
            LeaseStep::PrepareLease(PrepareLease { lease, .. }) => {
                self.put_donor(lease.id, lease.fencing_token, |record| {
                    record.namespace = Some("ns".into());
                    record.grant = (record.delivery == Delivery::VirtualNode).then(|| Grant {
                        origin_liqo_id: "liqo-2".into(),
                        namespace: "team-a".into(),
                        resources: BTreeMap::new(),
                        node_selector: BTreeMap::new(),
                        node_labels: BTreeMap::new(),
                    });
                });
            }
            LeaseStep::ReopenLease(ReopenLease { lease }) => {
                self.live.unmarked.remove(&lease.id);
            }
            LeaseStep::SealCredential(SealCredential { lease, ends_at_ms, epoch, .. }) => {
                let (now, end) = (self.now_ms, *ends_at_ms);
                self.put_donor(lease.id, lease.fencing_token, |record| {
                    record.last_sequence += 1;
                    record.peer = Some(epoch.to_record());
                    record.sealed = Some(SealedCredential {
                        epoch: epoch.epoch(),
                        sequence: record.last_sequence,
                        issued_at_ms: now,
                        expires_at_ms: end.min(now + 600_000),
                        lease_end_ms: end,
                    });
                });
                self.report(ReportKey::Credential(lease.id));
                self.report(ReportKey::Ready(lease.id));
            }
            LeaseStep::ReportCheckpointed(ReportCheckpointed { lease, .. }) => {
                self.report(ReportKey::Checkpointed(*lease))
            }
            LeaseStep::ReportUse(ReportUse { lease, idle_since, .. }) => {
                self.report(ReportKey::Use(*lease));
                self.live.uses.note_reported(*lease, *idle_since);
            }
            LeaseStep::ReportLease(ReportLease { lease, .. }) => self.report(ReportKey::Ready(*lease)),
            LeaseStep::OpenCredential(OpenCredential { lease, fencing_token, epoch, envelope }) => {
                let mut record = OriginRecord::new(*lease, *fencing_token, Delivery::Namespace);
                record.peer = Some(epoch.to_record());
                record.credential = Some(HeldCredential {
                    epoch: 1,
                    sequence: envelope.key.sequence,
                    encoded: SecretBlob::new(vec![1]),
                });
                self.records.origins.insert(*lease, Arc::new(record));
                self.opened(envelope);
            }
            LeaseStep::AcceptCredential(AcceptCredential { lease, .. }) => {
                let live = LiveLease { epoch: 1, sequence: 1, tunnel_epoch: self.live.tunnels[&PEERING] };
                self.live.accepted.insert(lease.id, live);
            }
            LeaseStep::Probe(Probe { lease, .. }) => self.report(ReportKey::Ready(lease.id)),
            LeaseStep::RemoveLease(RemoveLease { lease, side, report }) => {
                self.live.accepted.remove(lease);
                self.live.unwanted.remove(&ObjectId::Lease(*lease));
                if side.is_none() {
                    self.records.donors.remove(lease);
                    self.records.origins.remove(lease);
                } else if *side == Some(Side::Donor) {
                    self.put_donor(*lease, report.unwrap_or(1), |record| {
                        record.namespace = None;
                        record.sealed = None;
                        record.removed = true;
                        record.ended |= report.is_some();
                    });
                } else {
                    let record = OriginRecord { removed: true, ..OriginRecord::new(*lease, 1, Delivery::Namespace) };
                    self.records.origins.insert(*lease, Arc::new(record));
                }
                if report.is_some() {
                    self.report(ReportKey::Clean(*lease));
                }
            }
            LeaseStep::ForgetLease(ForgetLease { lease }) => {
                self.records.donors.remove(lease);
                self.records.origins.remove(lease);
            }
        }
    }

    pub(super) fn opened(&mut self, envelope: &Envelope) {
        let key = &envelope.key;
        self.change_peering(key.epoch, |record| {
            record.opened.insert(PeeringRecord::kind(key.lease, &key.step), key.sequence);
        });
        self.report(ReportKey::EnvelopeAck(key.clone()));
    }

    pub(super) fn put_donor(&mut self, lease: LeaseId, token: u64, change: impl FnOnce(&mut DonorRecord)) {
        let desired = self.desired.leases.iter().find(|desired| desired.id == lease);
        let fresh = DonorRecord {
            peer: Some(LeasePeer { peering: PEERING, cluster: "origin".into(), identity_key: None }),
            capacity: desired.map(admitted).unwrap_or_default(),
            admitted_at_ms: self.now_ms,
            ..DonorRecord::new(lease, token, Delivery::Namespace)
        };
        let mut record = self.records.donors.get(&lease).map_or(fresh, |record| DonorRecord::clone(record));
        record.removed = false;
        change(&mut record);
        self.records.donors.insert(lease, Arc::new(record));
    }
}
