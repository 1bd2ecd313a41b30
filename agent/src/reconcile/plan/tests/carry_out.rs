//! What carrying out each step does to what the next plan sees.

use super::*;

impl Sim {
    /// What the step's executor does to what a plan sees.
    pub(super) fn carry_out(&mut self, step: &Step) {
        match step {
            Step::MakeKeys { peering, epoch, .. } => {
                self.change_peering(*epoch, |_| {});
                self.report(ReportKey::Keys(peering.clone(), *epoch));
            }
            Step::SendPsk { expected, .. } => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.report(ReportKey::Psk(expected.peering.clone(), expected.epoch));
            }
            Step::OpenPsk { expected, envelope, .. } => {
                self.change_peering(expected.epoch, |record| {
                    record.preshared = Some(SecretKey::new([5; 32]));
                    record.remote = Some(remote());
                });
                self.opened(envelope);
                self.report(ReportKey::Proof(expected.peering.clone(), expected.epoch));
            }
            Step::SendProof { peering, epoch } => self.report(ReportKey::Proof(peering.clone(), *epoch)),
            Step::CheckProof { peering, epoch, envelope } => {
                self.change_peering(*epoch, |record| record.proven = true);
                if let Some(envelope) = envelope {
                    self.opened(envelope);
                }
                self.report(ReportKey::Authenticated(peering.clone(), *epoch));
            }
            Step::ConfigureFabric { peering, epoch } => {
                self.live.tunnels.insert(peering.clone(), *epoch);
            }
            Step::ReportEstablished { peering, epoch } => self.report(ReportKey::Established(peering.clone(), *epoch)),
            Step::FailPeering { peering, epoch, .. } => self.report(ReportKey::PeeringFailed(peering.clone(), *epoch)),
            Step::ClosePeering { peering, .. } => {
                self.live.tunnels.remove(peering);
                self.records.peerings.clear();
                self.report(ReportKey::Closed(peering.clone()));
            }
            Step::ForgetPeering { peering, before } => {
                self.records
                    .peerings
                    .retain(|(id, epoch), _| id != peering || before.is_some_and(|before| *epoch >= before));
                if before.is_none() {
                    self.live.tunnels.remove(peering);
                    self.records.closed.remove(peering);
                    self.live.unwanted.remove(peering);
                }
            }
            Step::LiqoChallenge { .. }
            | Step::LiqoAdmit { .. }
            | Step::LiqoMint { .. }
            | Step::LiqoAnswer { .. }
            | Step::LiqoIdentity { .. }
            | Step::LiqoNetwork { .. }
            | Step::LiqoRemove { .. } => self.carry_out_liqo(step),
            Step::AdmitLease { lease, fencing_token, milli, delivery } => {
                self.records.fence = self.records.fence.max(*fencing_token);
                self.put_donor(lease, *fencing_token, |record| {
                    record.milli = *milli;
                    record.delivery = *delivery;
                });
            }
            Step::RefuseLease { lease, .. } => self.report(ReportKey::LeaseFailed(lease.clone())),
            Step::PrepareLease { lease, .. } => {
                self.put_donor(&lease.id, lease.fencing_token, |record| {
                    record.namespace = Some("ns".into());
                    record.grant = (record.delivery == DeliveryKind::VirtualNode).then(|| Grant {
                        origin_liqo_id: "liqo-2".into(),
                        resources: BTreeMap::new(),
                        node_selector: BTreeMap::new(),
                        node_labels: BTreeMap::new(),
                    });
                });
            }
            Step::SealCredential { lease, ends_at_ms, epoch, .. } => {
                let (now, end) = (self.now_ms, *ends_at_ms);
                self.put_donor(&lease.id, lease.fencing_token, |record| {
                    record.last_sequence += 1;
                    record.sealed = Some(SealedCredential {
                        epoch: *epoch,
                        sequence: record.last_sequence,
                        issued_at_ms: now,
                        expires_at_ms: end.min(now + 600_000),
                        lease_end_ms: end,
                    });
                });
                self.report(ReportKey::Credential(lease.id.clone()));
                self.report(ReportKey::Ready(lease.id.clone()));
            }
            Step::ReportCheckpointed { lease, .. } => self.report(ReportKey::Checkpointed(lease.clone())),
            Step::ReportLease { lease, .. } => self.report(ReportKey::Ready(lease.clone())),
            Step::OpenCredential { lease, fencing_token, envelope } => {
                let mut record = OriginRecord::new(lease, *fencing_token, DeliveryKind::Namespace);
                record.credential =
                    Some(HeldCredential { epoch: 1, sequence: envelope.sequence, encoded: SecretBlob::new(vec![1]) });
                self.records.origins.insert(lease.clone(), Arc::new(record));
                self.opened(envelope);
            }
            Step::AcceptCredential { lease } => {
                let live = LiveLease { epoch: 1, sequence: 1, tunnel_epoch: self.live.tunnels["peer-1"] };
                self.live.accepted.insert(lease.id.clone(), live);
            }
            Step::Probe { lease } => self.report(ReportKey::Ready(lease.id.clone())),
            Step::RemoveLease { lease, side, report } => {
                self.live.accepted.remove(lease);
                self.live.unwanted.remove(lease);
                if side.is_none() {
                    self.records.donors.remove(lease);
                    self.records.origins.remove(lease);
                } else if *side == Some(Side::Donor) {
                    self.put_donor(lease, report.unwrap_or(1), |record| {
                        record.namespace = None;
                        record.sealed = None;
                        record.removed = true;
                    });
                } else {
                    let record = OriginRecord { removed: true, ..OriginRecord::new(lease, 1, DeliveryKind::Namespace) };
                    self.records.origins.insert(lease.clone(), Arc::new(record));
                }
                if report.is_some() {
                    self.report(ReportKey::Clean(lease.clone()));
                }
            }
            Step::ForgetLease { lease } => {
                self.records.donors.remove(lease);
                self.records.origins.remove(lease);
            }
            Step::DiscardEnvelope { ack } => self.report(ack_key(ack)),
        }
    }

    pub(super) fn opened(&mut self, envelope: &v1::Envelope) {
        let kind = PeeringRecord::kind(&envelope.lease, &envelope.step);
        self.change_peering(envelope.epoch, |record| {
            record.opened.insert(kind, envelope.sequence);
        });
        self.report(ack_key(&ack_of(envelope)));
    }

    pub(super) fn put_donor(&mut self, lease: &str, token: u64, change: impl FnOnce(&mut DonorRecord)) {
        let fresh =
            DonorRecord { admitted_at_ms: self.now_ms, ..DonorRecord::new(lease, token, DeliveryKind::Namespace) };
        let mut record = self.records.donors.get(lease).map_or(fresh, |record| DonorRecord::clone(record));
        record.removed = false;
        change(&mut record);
        self.records.donors.insert(lease.into(), Arc::new(record));
    }
}
