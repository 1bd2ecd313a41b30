//! Comity itself: the broker's state machine and matcher, with one donor that has the trace's nodes.
//!
//! Each task with GPUs is a request that is submitted, planned and placed by the commands that the broker's log holds. Work
//! without GPUs is no request: it is the donor's own, put where the planner advises, and a new offer says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_core::cluster::Cluster;
use comity_core::command::{AdvertiseOffer, CancelRequest, PlaceRequests, SubmitRequest};
use comity_core::demand::{Delivery, DeviceChoice, GpuDemand, RequestSpec, Share, Topology};
use comity_core::inventory::{Device, Node, Offer, Sharing};
use comity_core::log::LOG_FORMAT;
use comity_core::matcher::Planner;
use comity_core::packing::{Shape, Task};
use comity_core::policy_record::PolicyRecord;
use comity_core::refusal::Code;
use comity_core::work::{WorkMix, WorkType};
use comity_core::{
    Actor, ClassName, ClusterId, Command, InstitutionId, LogEnvelope, Millis, NodeId, Refusal, Reply, ReplyBody, State,
    TenantId, Timestamp,
};
use comity_policy::{Bundle, BundleSource, SourceFile};

use super::Policy;
use crate::trace::Trace;

/// One class, one lender, one borrower, no quota.
const TERMS: &str = r#"
apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {name: replay}
spec: {trustDomain: replay.example, maintainers: ["spiffe://replay.example/user/admin"]}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: borrowers}
spec: {displayName: Borrowers, contact: "ops@replay.example", homeRegion: eu, clusters: [origin]}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: lenders}
spec: {displayName: Lenders, contact: "ops@replay.example", homeRegion: eu, clusters: [donor]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: donor}
spec: {institution: lenders, lends: [{classes: [gpu]}]}
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: gpu}
spec: {selector: 'device.memoryMiB > 0', rank: 1}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: team}
spec:
  institution: borrowers
  members: [{id: "spiffe://replay.example/user/alice", role: submitter}]
  classes: [gpu]
  clusters: [origin]
---
apiVersion: policy.comity.dev/v1
kind: Agreement
metadata: {name: loan}
spec: {borrowers: [borrowers], lenders: [lenders], classes: [gpu]}
"#;

/// The broker's core over the nodes of a trace.
#[derive(Debug)]
pub struct Comity {
    names: Names,
    idle: State,
    state: State,
    planner: Planner,
    /// Of the last offer.
    generation: u64,
    refused: Option<String>,
}

#[derive(Debug)]
struct Names {
    origin: ClusterId,
    donor: ClusterId,
    tenant: TenantId,
    class: ClassName,
}

impl Comity {
    /// Over idle nodes, expecting work like `history`.
    ///
    /// # Errors
    /// What the core says if the trace's nodes cannot be an offer.
    pub fn new(trace: &Trace, history: &[Task]) -> Result<Self, Refusal> {
        let names = Names {
            origin: ClusterId::parse("origin", "cluster")?,
            donor: ClusterId::parse("donor", "cluster")?,
            tenant: TenantId::parse("team", "tenant")?,
            class: ClassName::parse("gpu", "class")?,
        };
        let mut work = WorkMix::default();
        for task in history {
            work.add(names.work(task), 1);
        }
        let mut idle = State::default();
        let source = BundleSource {
            files: vec![SourceFile { path: "terms.yaml".to_owned(), text: TERMS.to_owned() }],
            commit: None,
        };
        let bundle = Bundle::compile(&source).map_err(|problems| {
            Refusal::new(Code::InvalidField, format!("{problems:?}"), "mend the terms of the replay")
        })?;
        idle.policy = Some(PolicyRecord {
            bundle: Arc::new(bundle),
            source,
            applied_at: Timestamp::default(),
            applied_by: "spiffe://replay.example/user/admin".to_owned(),
        });
        for (id, institution) in [(&names.origin, "borrowers"), (&names.donor, "lenders")] {
            let institution = InstitutionId::parse(institution, "institution")?;
            idle.clusters.insert(id.clone(), member(institution));
        }
        idle.rebuild_derived();
        let nodes: Result<BTreeMap<NodeId, Node>, Refusal> =
            (0..).zip(trace.nodes.values()).map(|(number, shape)| Ok((node_id(number)?, node(shape)))).collect();
        let offer = Offer { generation: 1, nodes: nodes?, deliveries: BTreeSet::from([Delivery::Namespace]) };
        apply(&mut idle, Command::AdvertiseOffer(AdvertiseOffer { cluster: names.donor.clone(), offer }))?;
        let planner = Planner::expecting(work);
        Ok(Self { names, state: idle.clone(), idle, planner, generation: 1, refused: None })
    }

    fn request(&mut self, task: &Task) -> Result<bool, Refusal> {
        let WorkType { gpus, topology } = self.names.work(task);
        let spec = RequestSpec {
            tenant: self.names.tenant.clone(),
            origin: self.names.origin.clone(),
            gpus,
            topology,
            duration: Millis::from_hours(1),
            allow_donors: Vec::new(),
            deny_donors: Vec::new(),
            delivery: Delivery::Namespace,
            target_namespace: "comity-leases".to_owned(),
            purpose: String::new(),
            priority: None,
            not_before: None,
            start_by: None,
            preemptible: None,
        };
        let submitted_by = "spiffe://replay.example/user/alice".to_owned();
        let submit = Command::SubmitRequest(SubmitRequest { spec, submitted_by });
        let ReplyBody::Request(request) = apply(&mut self.state, submit)? else { return Ok(false) };
        let placements = self.planner.plan(&self.state, 1).placements;
        if placements.is_empty() {
            apply(&mut self.state, Command::CancelRequest(CancelRequest { request }))?;
            return Ok(false);
        }
        match apply(&mut self.state, Command::PlaceRequests(PlaceRequests { placements }))? {
            ReplyBody::Placed { leases, refused } => match refused.into_iter().next() {
                Some((_, refusal)) => Err(refusal),
                None => Ok(!leases.is_empty()),
            },
            _ => Ok(false),
        }
    }

    /// Work without GPUs: the donor's own.
    fn run_locally(&mut self, task: &Task) -> Result<bool, Refusal> {
        let donor = &self.names.donor;
        let Some(id) = self.planner.advise(&self.state, donor, task.cpu_milli, task.memory_mib) else {
            return Ok(false);
        };
        let Some(mut offer) = self.state.clusters.get(donor).and_then(|donor| donor.offer.clone()) else {
            return Ok(false);
        };
        self.generation += 1;
        offer.generation = self.generation;
        if let Some(node) = offer.nodes.get_mut(&id) {
            node.local_cpu_milli += task.cpu_milli;
            node.local_memory_mib += task.memory_mib;
        }
        apply(&mut self.state, Command::AdvertiseOffer(AdvertiseOffer { cluster: donor.clone(), offer }))?;
        Ok(true)
    }
}

impl Names {
    /// What a task is as a request.
    fn work(&self, task: &Task) -> WorkType {
        let count = u32::from(task.devices);
        let devices = if task.kinds.is_empty() {
            DeviceChoice::Class(self.class.clone())
        } else {
            let names: Vec<String> = task.kinds.iter().map(|kind| format!("'{}'", product(*kind))).collect();
            DeviceChoice::Selector(format!("device.productName in [{}]", names.join(", ")))
        };
        let share = if task.milli == 1_000 { Share::Whole } else { Share::Milli(u32::from(task.milli)) };
        let gpus = GpuDemand {
            devices,
            share,
            count,
            cpu_milli_per_gpu: task.cpu_milli.div_ceil(u64::from(count.max(1))),
            memory_mib_per_gpu: task.memory_mib.div_ceil(u64::from(count.max(1))),
        };
        WorkType { gpus, topology: Topology { same_node: count > 1, whole_node: false } }
    }
}

impl Policy for Comity {
    fn restart(&mut self, _seed: u64) {
        self.state.clone_from(&self.idle);
        self.generation = 1;
        self.planner.forget();
    }

    fn place(&mut self, task: &Task) -> bool {
        let placed = if task.devices == 0 { self.run_locally(task) } else { self.request(task) };
        placed.unwrap_or_else(|refusal| {
            self.refused.get_or_insert_with(|| refusal.to_string());
            false
        })
    }

    fn fault(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

fn apply(state: &mut State, command: Command) -> Result<ReplyBody, Refusal> {
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::Leader(1),
        time: Timestamp(1_000_000),
        traceparent: String::new(),
        idempotency: None,
        command,
    };
    let reply: Reply = state.apply(&entry).reply;
    reply
}

fn member(institution: InstitutionId) -> Cluster {
    Cluster {
        institution,
        identity_key: String::new(),
        joined_at: Timestamp::default(),
        certificate_not_after: Timestamp(u64::MAX),
        connected: true,
        since: Timestamp::default(),
        offer: None,
        last_fencing_token: 0,
        revision: 0,
    }
}

fn node_id(number: usize) -> Result<NodeId, Refusal> {
    NodeId::parse(&format!("node-{number:06}"), "node")
}

fn product(kind: u32) -> String {
    format!("KIND-{kind}")
}

fn node(shape: &Shape) -> Node {
    let device = Device {
        product_name: product(shape.kind),
        architecture: String::new(),
        memory_mib: 16_384,
        cuda_compute_capability: "8.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Sharing::Fractional { step_milli: 1 },
        healthy: true,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
    };
    Node {
        cpu_milli: shape.cpu_milli,
        memory_mib: shape.memory_mib,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: vec![device; usize::from(shape.devices)],
        schedulable: true,
    }
}
