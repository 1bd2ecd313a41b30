//! The state of one scenario, and the log entries that change it.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{
    AdvertiseOffer, CancelRequest, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters, PlaceRequests,
    ReclaimLeases, ReportLease, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::RequestSpec;
use comity_core::inventory::{NodeMap, Offer};
use comity_core::limits::{MAX_PLACEMENTS_PER_PLAN, WHOLE_MILLI};
use comity_core::log::LOG_FORMAT;
use comity_core::proposal::ProposedReclaim;
use comity_core::scheduler::{self, Plan};
use comity_core::{Actor, Command, LogEnvelope, Millis, ReplyBody, State, Timestamp, explain};
use comity_policy::{GivenCluster, GivenLease};
use comity_types::{ClusterId, Delivery, LeaseId, LeaseState, NodeId, RequestId, namespace_name};

use crate::{devices, requests};

/// Why a scenario cannot be set up.
pub(crate) type Impossible = String;

/// A federation with the bundle in force.
pub(crate) struct Federation {
    pub(crate) state: State,
    now: Timestamp,
    /// Names of the given leases.
    pub(crate) leases: BTreeMap<LeaseId, String>,
}

impl Federation {
    pub(crate) fn new(state: State, now: Timestamp) -> Self {
        Self { state, now, leases: BTreeMap::new() }
    }

    /// Advances time, and lets happen what becomes due.
    pub(crate) fn advance_to(&mut self, time: Timestamp) -> Result<(), Impossible> {
        self.now = self.now.max(time);
        self.apply(Command::Expire(Expire {})).map(drop)
    }

    /// Joins a cluster with idle nodes, connected.
    pub(crate) fn join(&mut self, cluster: &ClusterId, given: Option<&GivenCluster>) -> Result<(), Impossible> {
        let secret_sha256 = format!("{cluster:0>64}");
        self.apply(Command::InviteCluster(InviteCluster {
            cluster: cluster.clone(),
            secret_sha256: secret_sha256.clone(),
            ttl: Millis::from_hours(1),
            replace: false,
        }))?;
        self.apply(Command::JoinCluster(JoinCluster {
            cluster: cluster.clone(),
            secret_sha256,
            identity_key: format!("ed25519:{cluster}"),
            certificate_not_after: Timestamp(u64::MAX),
        }))?;
        self.apply(Command::MarkClusters(MarkClusters { heard: vec![cluster.clone()], silent: Vec::new() }))?;
        let nodes = given.map(devices::idle_nodes).transpose().map_err(|refusal| refusal.to_string())?;
        self.advertise(cluster, given, nodes.unwrap_or_default())
    }

    /// Offers nodes, in a new generation.
    fn advertise(
        &mut self,
        cluster: &ClusterId,
        given: Option<&GivenCluster>,
        nodes: NodeMap,
    ) -> Result<(), Impossible> {
        let all = BTreeSet::from([Delivery::Namespace, Delivery::VirtualNode]);
        let offer = Offer {
            generation: self.state.revision + 1,
            nodes,
            deliveries: given.map_or(all, |given| given.deliveries.clone()),
            data: DataSite::default(),
        };
        self.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster.clone(), offer })).map(drop)
    }

    /// Begins a lease at its donor: its request is placed there, and both clusters report that they are ready.
    pub(crate) fn begin(&mut self, given: &GivenLease) -> Result<(), Impossible> {
        let cannot = |why: String| format!("lease `{}` cannot be at {}: {why}", given.name, given.donor);
        let mut spec = requests::spec(&given.request, &self.state).map_err(|refusal| cannot(refusal.to_string()))?;
        let donor = ClusterId::parse(&given.donor, "donor").map_err(|invalid| cannot(invalid.to_string()))?;
        spec.allow_donors = vec![donor];
        let request = self.submit(spec).map_err(cannot)?;
        // Requests that wait already must not take its place.
        let mut alone = Self { state: self.state.clone(), now: self.now, leases: BTreeMap::new() };
        let others: Vec<RequestId> = alone.state.queued().map(|(id, _)| id).filter(|id| *id != request).collect();
        for other in others {
            alone.apply(Command::CancelRequest(CancelRequest { request: other }))?;
        }
        let plan = scheduler::plan(&alone.state, MAX_PLACEMENTS_PER_PLAN);
        let Some(placed) = plan.placements.into_iter().find(|placed| placed.request == request) else {
            let waiting = explain::explain_waiting(&alone.state, request);
            return Err(cannot(waiting.map(|waiting| waiting.explanation.summary).unwrap_or_default()));
        };
        for lease in self.place(vec![placed]).map_err(cannot)? {
            self.report_ready(lease)?;
            self.leases.insert(lease, given.name.clone());
        }
        Ok(())
    }

    fn report_ready(&mut self, lease: LeaseId) -> Result<(), Impossible> {
        let Some(held) = self.state.leases.get(&lease) else { return Ok(()) };
        let (fencing_token, clusters) = (held.fencing_token, [held.placement.donor.clone(), held.origin.clone()]);
        for cluster in clusters {
            let outcome = LeaseOutcome::Ready { namespace: namespace_name(lease), secret_name: "lease".to_owned() };
            self.apply(Command::ReportLease(ReportLease { cluster, lease, fencing_token, outcome }))?;
        }
        Ok(())
    }

    /// Makes local work and faults of a cluster known, and that it is silent.
    pub(crate) fn observe(&mut self, cluster: &ClusterId, given: &GivenCluster) -> Result<(), Impossible> {
        let mut nodes = NodeMap::new();
        for (id, entry) in devices::nodes(given).map_err(|refusal| refusal.to_string())? {
            let mut node = devices::idle_node(entry);
            let lent = self.lent_devices(cluster, &id);
            // Local work takes what is not lent as long as it can.
            let free = (0..entry.gpus).rev().filter(|device| !lent.contains(device));
            let in_turn = free.chain((0..entry.gpus).rev().filter(|device| lent.contains(device)));
            let in_turn: Vec<usize> = in_turn.filter_map(|device| usize::try_from(device).ok()).collect();
            let local = usize::try_from(entry.local_use).unwrap_or(usize::MAX).min(in_turn.len());
            let (held, others) = in_turn.split_at(local);
            for device in held {
                node.devices[*device].local_use_milli = WHOLE_MILLI;
            }
            let unhealthy = usize::try_from(entry.unhealthy).unwrap_or(usize::MAX);
            for device in others.iter().chain(held).take(unhealthy) {
                node.devices[*device].healthy = false;
            }
            nodes.insert(id, node);
        }
        self.advertise(cluster, Some(given), nodes)?;
        if given.silent {
            let silent = MarkClusters { heard: Vec::new(), silent: vec![cluster.clone()] };
            self.apply(Command::MarkClusters(silent))?;
        }
        Ok(())
    }

    /// Devices of a node that leases hold.
    fn lent_devices(&self, cluster: &ClusterId, node: &NodeId) -> BTreeSet<u32> {
        let leases = self.state.leases_of(cluster).filter(|(_, lease)| lease.occupies());
        let parts = leases.filter_map(|(_, lease)| lease.placement.nodes.get(node));
        parts.flat_map(|part| part.devices.keys().copied()).collect()
    }

    /// Refuses a scenario whose leases are not all in force.
    pub(crate) fn check_in_force(&self) -> Result<(), Impossible> {
        for (id, name) in &self.leases {
            let Some(lease) = self.state.leases.get(id) else { continue };
            if lease.state != LeaseState::Active && lease.state != LeaseState::Suspect {
                let remedy = "shorten its `age`, or lengthen its `duration`";
                return Err(format!("lease `{name}` is {} at `now`: {}; {remedy}", lease.state, lease.message));
            }
        }
        Ok(())
    }

    /// The reclaims that donors need, whatever is requested.
    pub(crate) fn needed_reclaims(&self) -> Vec<ProposedReclaim> {
        let now = self.state.log_time;
        let donors = self.state.clusters.keys();
        donors.flat_map(|donor| scheduler::reclaims_at(&self.state, donor, now)).collect()
    }

    pub(crate) fn reclaim(&mut self, reclaims: Vec<ProposedReclaim>) -> Result<(), Impossible> {
        if reclaims.is_empty() {
            return Ok(());
        }
        match self.apply(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims }))? {
            ReplyBody::Reclaimed { refused, .. } => match refused.into_iter().next() {
                Some((_, refusal)) => Err(refusal.to_string()),
                None => Ok(()),
            },
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn submit(&mut self, spec: RequestSpec) -> Result<RequestId, Impossible> {
        let submitted_by = "a scenario".to_owned();
        match self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by }))? {
            ReplyBody::Request(request) => Ok(request),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        scheduler::plan(&self.state, MAX_PLACEMENTS_PER_PLAN)
    }

    pub(crate) fn place(
        &mut self,
        placements: Vec<comity_core::proposal::ProposedPlacement>,
    ) -> Result<Vec<LeaseId>, Impossible> {
        let mut made = Vec::new();
        for command in PlaceRequests::of_plan(placements) {
            match self.apply(Command::PlaceRequests(command))? {
                ReplyBody::Placed { leases, refused } => match refused.into_iter().next() {
                    Some((_, refusal)) => return Err(refusal.to_string()),
                    None => made.extend(leases),
                },
                other => return Err(unexpected(&other)),
            }
        }
        Ok(made)
    }

    fn apply(&mut self, command: Command) -> Result<ReplyBody, Impossible> {
        apply(&mut self.state, self.now, command)
    }
}

/// Applies one log entry.
pub(crate) fn apply(state: &mut State, time: Timestamp, command: Command) -> Result<ReplyBody, Impossible> {
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::Leader(1),
        generation: 0,
        time,
        traceparent: String::new(),
        idempotency: None,
        command,
    };
    let applied = state.apply(&entry).map_err(|illegal| illegal.to_string())?;
    applied.reply.map_err(|refusal| refusal.to_string())
}

fn unexpected(reply: &ReplyBody) -> Impossible {
    format!("unexpected reply {reply:?}")
}
