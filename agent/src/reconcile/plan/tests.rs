//! Plans repeatedly until nothing is left to do, and applies each step's effect to the records.

#![expect(clippy::unwrap_used, reason = "tests")]

mod after_lies;
mod carry_out;
mod converge;
mod double_opt_in;
mod fixtures;
mod fuzz_plan;
mod hostile_broker;
mod leases;
mod lend_by_signed_terms;
mod liqo_exchanges;
mod peerings;

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::donor::Grant;
use comity_agent_model::node_service::Authentication;
use comity_agent_model::peering::Peering;
use comity_agent_state::record::{
    AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord, HeldCredential, HpkePublicKey, LeasePeer, LiqoRecord,
    MintedToken, OriginRecord, Outgoing, PeerRecord, PeeringRecord, RemoteKeys, RemoteNetwork, SealedCredential,
    SealedMessage, SecretBlob, SecretKey, Trust,
};
use comity_types::{Delivery, LeaseState, PeeringState, Side};
use fixtures::{bundle, cluster, envelope, known_peer, lease, network, peering_record, remote, two_gpus};

use super::*;
use crate::reconcile::live::LiveLease;

const NOW: u64 = 1_000_000;
/// The peering of most tests.
const PEERING: PeeringId = PeeringId(1);
/// The lease of most tests.
const LEASE: LeaseId = LeaseId(1);

/// Whether the broker knows both key bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bundles {
    Unknown,
    Known,
}

/// One side, as a simulation that does what the steps do to the records.
struct Sim {
    cluster: &'static str,
    side: Side,
    desired: DesiredState,
    records: Records,
    live: Live,
    policy: LocalPolicy,
    reserve: LocalReserve,
    require_vouchers: bool,
    borrowing: BorrowingPolicy,
    signed_policy: SignedPolicy,
    nodes: Option<Vec<v1::Node>>,
    endpoints: Vec<String>,
    network: v1::ClusterNetwork,
    service: NodeService,
    is_live: bool,
    now_ms: u64,
    /// Messages of Liqo's exchange that were sealed.
    sealed: Vec<Envelope>,
}

impl Sim {
    fn new(side: Side) -> Self {
        let cluster = if side == Side::Donor { "donor" } else { "origin" };
        Self {
            cluster,
            side,
            desired: DesiredState::default(),
            records: Records::default(),
            live: Live::default(),
            policy: LocalPolicy::default(),
            reserve: LocalReserve::default(),
            require_vouchers: false,
            nodes: Some(two_gpus([0, 0])),
            borrowing: BorrowingPolicy::default(),
            signed_policy: SignedPolicy::default(),
            endpoints: Vec::new(),
            network: network(1),
            service: NodeService {
                lends: Ok(()),
                borrows: Ok(()),
                authentication: Authentication::default(),
                needs_tun: true,
                peer_networks: vec!["10.0.0.0/8".parse().unwrap()],
                peer_api_servers: [("donor".to_owned(), vec!["192.0.2.0/24".parse().unwrap()])].into(),
                remaps: Err("name a network in fabric.tun.remap".to_owned()),
            },
            is_live: true,
            now_ms: NOW,
            sealed: Vec::new(),
        }
    }

    fn peering(mut self, state: PeeringState, epoch: u32, bundles: Bundles) -> Self {
        let is_known = bundles == Bundles::Known;
        let peering = Peering {
            id: PEERING,
            origin: cluster("origin"),
            donor: cluster("donor"),
            epoch,
            state: Some(state),
            message: String::new(),
        };
        self.desired.peerings = vec![PeeringDirective {
            peering,
            origin_keys: is_known.then(|| bundle("origin", Side::Origin)),
            donor_keys: is_known.then(|| bundle("donor", Side::Donor)),
            peer_identity_key: remote().identity_key.to_string(),
            peer_institution: String::new(),
            reported_established: false,
        }];
        self
    }

    fn plan(&self) -> Vec<Step> {
        plan(&Snapshot {
            cluster: self.cluster,
            desired: &self.desired,
            is_live: self.is_live,
            records: &self.records,
            live: &self.live,
            endpoints: &self.endpoints,
            network: Some(&self.network),
            service: &self.service,
            policy: &self.policy,
            reserve: self.reserve,
            require_vouchers: self.require_vouchers,
            borrowing: &self.borrowing,
            signed_policy: &self.signed_policy,
            nodes: self.nodes.as_deref(),
            now_ms: self.now_ms,
            outage_grace_ms: 60_000,
        })
    }

    fn names(&self) -> Vec<&'static str> {
        self.plan().iter().map(Step::name).collect()
    }

    fn report(&mut self, key: ReportKey) {
        let id = self.records.outbox.keys().next_back().map_or(1, |id| id + 1);
        self.records.outbox.insert(id, Arc::new(Outgoing { key, message: v1::AgentMessage::default() }));
    }

    fn change_peering(&mut self, epoch: u32, change: impl FnOnce(&mut PeeringRecord)) {
        let mut record = self
            .records
            .peering(PEERING, epoch)
            .map_or_else(|| peering_record(self.cluster, self.side, epoch), |record| PeeringRecord::clone(record));
        change(&mut record);
        if let Some(remote) = &mut record.remote {
            remote.cluster = if self.side == Side::Donor { "origin" } else { "donor" }.to_owned();
            let cluster = remote.cluster.clone();
            self.records.peers.entry(cluster).or_insert_with(|| Arc::new(known_peer(remote)));
        }
        self.records.peerings.insert((PEERING, epoch), Arc::new(record));
    }

    /// Plans and carries out until nothing is left; the names of the steps in their order.
    fn settle(&mut self) -> Vec<&'static str> {
        let mut done = Vec::new();
        for _ in 0..40 {
            let steps = self.plan();
            if steps.is_empty() {
                return done;
            }
            for step in &steps {
                done.push(step.name());
                self.carry_out(step);
            }
        }
        panic!("a plan never ends: {done:?}");
    }

    /// A restart: what is only in memory is gone.
    fn restart(&mut self) {
        self.live = Live::default();
    }
}

fn connected_donor() -> Sim {
    connected(Side::Donor)
}

fn connected_origin() -> Sim {
    connected(Side::Origin)
}

fn connected(side: Side) -> Sim {
    let mut sim = Sim::new(side).peering(PeeringState::Established, 1, Bundles::Known);
    sim.desired.peerings[0].reported_established = true;
    sim.change_peering(1, |record| {
        record.preshared = Some(SecretKey::new([5; 32]));
        record.remote = Some(remote());
    });
    sim.settle();
    sim
}
