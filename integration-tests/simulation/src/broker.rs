//! The broker's state machine and planner in simulated time, without a log and agents. The caller issues the log's
//! commands, reports for the agents and advances time.

pub(crate) mod hardware;
mod members;
mod mutual_policy;
pub(crate) mod spec;

use std::collections::BTreeSet;

use comity_core::command::{
    AdvertiseOffer, ApplyPolicy, CancelRequest, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters,
    PlaceRequests, ReclaimLeases, ReportLease, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::RequestSpec;
use comity_core::inventory::{NodeMap, Offer};
use comity_core::log::LOG_FORMAT;
use comity_core::proposal::{ProposedPlacement, ProposedReclaim};
use comity_core::refusal::Code;
use comity_core::scheduler::{Plan, Planner};
use comity_core::{Actor, Command, LogEnvelope, Millis, Refusal, ReplyBody, State, Timestamp};
use comity_policy::{BundleSource, SourceFile};
use comity_types::{ClassName, ClusterId, Delivery, LeaseId, LeaseState, RequestId, TenantId, namespace_name};

pub(crate) use self::members::{DONOR, ORIGIN};
pub use self::members::{Member, node_id};

/// The broker's core.
#[derive(Clone, Debug)]
pub struct Broker {
    /// The current state.
    pub state: State,
    planner: Planner,
    now: Timestamp,
    class: ClassName,
    members: Vec<(ClusterId, TenantId)>,
}

/// The result of a reclaim command.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) spared: Vec<LeaseId>,
    pub(crate) refused: usize,
}

impl Broker {
    /// A broker whose `clusters` have joined under `policy` and are connected, but offer nothing yet.
    ///
    /// # Errors
    /// When the core refuses the policy or a cluster.
    pub(crate) fn joined(policy: String, clusters: &[ClusterId], now: Timestamp) -> Result<Self, Refusal> {
        Self::joined_under(one_file(policy), clusters, now)
    }

    /// Like [`joined`](Self::joined), under a bundle whose time zones are resolved.
    ///
    /// # Errors
    /// When the core refuses the policy or a cluster.
    pub(crate) fn joined_under(policy: BundleSource, clusters: &[ClusterId], now: Timestamp) -> Result<Self, Refusal> {
        let class = ClassName::parse("gpu", "class")?;
        let mut broker = Self { state: State::default(), planner: Planner::default(), now, class, members: Vec::new() };
        broker.apply_bundle(policy)?;
        for cluster in clusters.iter().cloned() {
            let secret_sha256 = format!("{cluster:0>64}");
            let (ttl, identity_key) = (Millis::from_hours(1), format!("ed25519:{cluster}"));
            let invite =
                InviteCluster { cluster: cluster.clone(), secret_sha256: secret_sha256.clone(), ttl, replace: false };
            broker.apply(Command::InviteCluster(invite))?;
            let certificate_not_after = Timestamp(u64::MAX);
            let join = JoinCluster { cluster, secret_sha256, identity_key, certificate_not_after };
            broker.apply(Command::JoinCluster(join))?;
        }
        broker.mark(clusters.to_vec(), Vec::new())?;
        Ok(broker)
    }

    /// The simulated time.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Advances time to `until`, never back. Events that become due take effect with [`expire`](Self::expire).
    pub(crate) fn advance_to(&mut self, until: Timestamp) {
        self.now = self.now.max(until);
    }

    /// Time of the next due event, unless it is after `until`.
    pub(crate) fn next_due_until(&self, until: Timestamp) -> Option<Timestamp> {
        self.state.next_due().filter(|due| *due <= until)
    }

    /// Applies all due events.
    pub(crate) fn expire(&mut self) -> Result<(), Refusal> {
        self.apply(Command::Expire(Expire {})).map(drop)
    }

    /// Replaces the policy.
    pub(crate) fn apply_policy(&mut self, text: String) -> Result<(), Refusal> {
        self.apply_bundle(one_file(text))
    }

    fn apply_bundle(&mut self, source: BundleSource) -> Result<(), Refusal> {
        self.apply(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None })).map(drop)
    }

    /// Marks clusters as connected or silent.
    pub(crate) fn mark(&mut self, heard: Vec<ClusterId>, silent: Vec<ClusterId>) -> Result<(), Refusal> {
        self.apply(Command::MarkClusters(MarkClusters { heard, silent })).map(drop)
    }

    /// Offers `nodes` for a cluster, in a new generation.
    pub(crate) fn advertise(&mut self, cluster: &ClusterId, nodes: NodeMap) -> Result<(), Refusal> {
        let offer = Offer {
            generation: self.state.revision + 1,
            nodes,
            deliveries: BTreeSet::from([Delivery::Namespace]),
            data: DataSite::default(),
        };
        self.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster.clone(), offer })).map(drop)
    }

    /// The nodes that a cluster offers, if it offers any.
    pub(crate) fn offered(&self, cluster: &ClusterId) -> Option<&NodeMap> {
        self.state.clusters.get(cluster)?.offer.as_ref().map(|offer| &offer.nodes)
    }

    /// Queues a request.
    pub(crate) fn submit_spec(&mut self, spec: RequestSpec) -> Result<RequestId, Refusal> {
        let submitted_by = format!("spiffe://simulation.example/user/{}", spec.tenant);
        match self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by }))? {
            ReplyBody::Request(request) => Ok(request),
            other => Err(unexpected(&other)),
        }
    }

    /// Plans up to `limit` placements for the queue.
    #[must_use]
    pub fn plan(&mut self, limit: usize) -> Plan {
        self.planner.plan(&self.state, limit)
    }

    /// Carries out a plan; returns the new leases.
    ///
    /// # Errors
    /// The first placement that the core refuses, which is a bug: the plan was made for this state.
    pub fn place(&mut self, placements: Vec<ProposedPlacement>) -> Result<Vec<LeaseId>, Refusal> {
        let mut made = Vec::with_capacity(placements.len());
        for command in PlaceRequests::of_plan(placements) {
            match self.apply(Command::PlaceRequests(command))? {
                ReplyBody::Placed { leases, refused } => match refused.into_iter().next() {
                    Some((_, refusal)) => return Err(refusal),
                    None => made.extend(leases),
                },
                other => return Err(unexpected(&other)),
            }
        }
        Ok(made)
    }

    /// Cancels a request.
    ///
    /// # Errors
    /// When the core refuses the command.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), Refusal> {
        self.apply(Command::CancelRequest(CancelRequest { request })).map(drop)
    }

    /// Spares some leases, then reclaims others.
    pub(crate) fn reclaim(
        &mut self,
        spare: Vec<LeaseId>,
        reclaims: Vec<ProposedReclaim>,
    ) -> Result<Reclaimed, Refusal> {
        if spare.is_empty() && reclaims.is_empty() {
            return Ok(Reclaimed::default());
        }
        match self.apply(Command::ReclaimLeases(ReclaimLeases { spare, reclaims }))? {
            ReplyBody::Reclaimed { leases, spared, refused } => {
                Ok(Reclaimed { leases, spared, refused: refused.len() })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Reports `outcome` from both clusters of a lease.
    pub(crate) fn report(&mut self, lease: LeaseId, outcome: &LeaseOutcome) -> Result<(), Refusal> {
        let Some(held) = self.state.leases.get(&lease) else { return Ok(()) };
        let fencing_token = held.fencing_token;
        for cluster in [held.placement.donor.clone(), held.origin.clone()] {
            let report = ReportLease { cluster, lease, fencing_token, outcome: outcome.clone() };
            self.apply(Command::ReportLease(report))?;
        }
        Ok(())
    }

    /// Reports from both clusters that a lease is ready.
    pub(crate) fn report_ready(&mut self, lease: LeaseId) -> Result<(), Refusal> {
        self.report(lease, &LeaseOutcome::Ready { namespace: namespace_name(lease), secret_name: "s".to_owned() })
    }

    /// Reports from the origin that a lease's work is saved.
    pub(crate) fn report_saved(&mut self, lease: LeaseId) -> Result<(), Refusal> {
        let Some(held) = self.state.leases.get(&lease) else { return Ok(()) };
        let (cluster, fencing_token) = (held.origin.clone(), held.fencing_token);
        let outcome = LeaseOutcome::Checkpointed;
        self.apply(Command::ReportLease(ReportLease { cluster, lease, fencing_token, outcome })).map(drop)
    }

    /// Leases that end and await their teardown.
    pub(crate) fn ending(&self) -> Vec<LeaseId> {
        let ending = self.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending);
        ending.map(|(id, _)| id).collect()
    }

    /// Applies a command at the current time.
    pub(crate) fn apply(&mut self, command: Command) -> Result<ReplyBody, Refusal> {
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::Leader(1),
            generation: 0,
            time: self.now,
            traceparent: String::new(),
            idempotency: None,
            command,
        };
        let applied = self
            .state
            .apply(&entry)
            .map_err(|illegal| Refusal::new(Code::WrongState, illegal.to_string(), "mend the core"))?;
        applied.reply
    }
}

fn one_file(text: String) -> BundleSource {
    BundleSource::of_files(vec![SourceFile { path: "terms.yaml".to_owned(), text }])
}

fn unexpected(reply: &ReplyBody) -> Refusal {
    Refusal::new(Code::WrongState, format!("unexpected reply {reply:?}"), "fix the simulation")
}
