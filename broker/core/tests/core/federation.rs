//! A small federation for tests: `west` borrows, `north` and `south` lend.

use std::collections::BTreeSet;

use comity_core::command::{
    AdvertiseOffer, ApplyPolicy, InviteCluster, JoinCluster, MarkClusters, PlaceRequests, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, RequestSpec, Share};
use comity_core::inventory::{Device, DeviceWiring, Enforcement, Node, NodeWiring, Offer, Sharing};
use comity_core::log::LOG_FORMAT;
use comity_core::{Actor, Applied, Blob, Command, LogEnvelope, Millis, State, Timestamp, scheduler};
use comity_policy::{BundleSource, SourceFile};
use comity_types::{ClassName, ClusterId, Delivery, LeaseId, NodeId, RequestId, TenantId};

/// Policy of the test federation.
const POLICY: &str = r#"
apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {name: test}
spec:
  trustDomain: test.example
  maintainers: ["spiffe://test.example/user/admin"]
  defaults: {leaseTerm: 1h, hold: 2m, peeringIdle: 10m, peeringStep: 20s, heartbeatTimeout: 30s}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: western}
spec: {displayName: Western, contact: "ops@west.example", homeRegion: eu, clusters: [west]}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: lenders}
spec: {displayName: Lenders, contact: "ops@lend.example", homeRegion: eu, clusters: [north, south]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: north}
spec: {institution: lenders, lends: [{classes: [big, small]}], delivery: [namespace, virtual-node]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: south}
spec: {institution: lenders, lends: [{classes: [big, small]}]}
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: big}
spec: {selector: 'device.memoryMiB >= 80000', rank: 10}
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: small}
spec: {selector: 'device.memoryMiB < 80000', rank: 1}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: team}
spec:
  institution: western
  members: [{id: "spiffe://test.example/user/alice", role: submitter}]
  classes: [big, small]
  clusters: [west]
---
apiVersion: policy.comity.dev/v1
kind: Agreement
metadata: {name: loan}
spec: {borrowers: [western], lenders: [lenders], classes: [big, small]}
"#;

/// A second borrower, `east`, beside `west`; two more teams; three priorities.
pub(crate) const RIVALS: &str = r#"
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: eastern}
spec: {displayName: Eastern, contact: "ops@east.example", homeRegion: eu, clusters: [east]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: east}
spec: {institution: eastern, lends: [{classes: [big, small]}]}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: rivals}
spec:
  institution: eastern
  members: [{id: "spiffe://test.example/user/bob", role: submitter}]
  classes: [big, small]
  clusters: [east]
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: juniors}
spec:
  institution: western
  weight: 50
  members: [{id: "spiffe://test.example/user/carol", role: submitter}]
  classes: [big, small]
  clusters: [west]
---
apiVersion: policy.comity.dev/v1
kind: Agreement
metadata: {name: rivals-loan}
spec: {borrowers: [eastern], lenders: [lenders], classes: [big, small]}
---
apiVersion: policy.comity.dev/v1
kind: Agreement
metadata: {name: neighbours}
spec: {parties: [western, eastern], classes: [big, small]}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 10, default: true}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: low}
spec: {value: 1}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 1000, usedBy: {tenants: [rivals]}}
"#;

pub(crate) struct Federation {
    pub(crate) state: State,
    pub(crate) log: Vec<LogEnvelope>,
    pub(crate) now: u64,
}

/// The test federation's documents with `to` in place of each `from`.
pub(crate) fn terms(from: &str, to: &str) -> BundleSource {
    let files = vec![SourceFile { path: "all.yaml".into(), text: POLICY.replace(from, to) }];
    BundleSource::of_files(files)
}

pub(crate) fn cluster(name: &str) -> ClusterId {
    ClusterId::parse(name, "cluster").unwrap()
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::parse(name, "node").unwrap()
}

pub(crate) fn device(memory_mib: u64, sharing: Sharing) -> Device {
    Device {
        product_name: "NVIDIA-H100-80GB-HBM3".into(),
        architecture: "hopper".into(),
        memory_mib,
        cuda_compute_capability: "9.0".into(),
        driver_version: "550.107.02".into(),
        sharing,
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".into(),
        wiring: DeviceWiring::default(),
    }
}

/// An offer of nodes with these numbers of devices, and ample CPU and memory.
pub(crate) fn offer(generation: u64, nodes: &[(&str, usize, Device)]) -> Offer {
    let nodes = nodes.iter().map(|(name, gpus, like)| {
        let has = Node {
            cpu_milli: 128_000,
            memory_mib: 1_000_000,
            local_cpu_milli: 0,
            local_memory_mib: 0,
            devices: vec![like.clone(); *gpus].into(),
            schedulable: true,
            ready: true,
            wiring: NodeWiring::default(),
            enforces: Enforcement::default(),
        };
        (node(name), has)
    });
    Offer {
        generation,
        nodes: nodes.collect(),
        deliveries: BTreeSet::from([Delivery::Namespace, Delivery::VirtualNode]),
        data: DataSite::default(),
    }
}

pub(crate) fn spec(count: u32, share: Share, class: &str) -> RequestSpec {
    let gpus = GpuDemand {
        devices: DeviceChoice::Class(ClassName::parse(class, "class").unwrap()),
        share,
        count,
        cpu_milli_per_gpu: 4_000,
        memory_mib_per_gpu: 16_000,
        isolation: Isolation::None,
        gpu_type: None,
    };
    RequestSpec {
        duration: Millis::from_mins(30),
        purpose: String::new(),
        note: "a test".into(),
        ..RequestSpec::new(TenantId::parse("team", "tenant").unwrap(), cluster("west"), gpus)
    }
}

impl Federation {
    /// With policy in force, and no cluster joined.
    pub(crate) fn with_policy() -> Self {
        let mut federation = Self { state: State::default(), log: Vec::new(), now: 1_000_000 };
        let files = vec![SourceFile { path: "all.yaml".into(), text: POLICY.into() }];
        federation.apply_policy(files);
        federation
    }

    fn apply_policy(&mut self, files: Vec<SourceFile>) {
        let source = BundleSource::of_files(files);
        self.ok(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
    }

    /// Puts further documents into force beside those of the test federation.
    pub(crate) fn also(&mut self, documents: &str) {
        let files = [("all.yaml", POLICY), ("more.yaml", documents)];
        let files = files.map(|(path, text)| SourceFile { path: path.into(), text: text.into() }).to_vec();
        self.apply_policy(files);
    }

    /// Puts the test federation's documents into force with other terms: `to` in place of the first `from`.
    pub(crate) fn with_terms(&mut self, from: &str, to: &str) {
        let files = vec![SourceFile { path: "all.yaml".into(), text: POLICY.replacen(from, to, 1) }];
        self.apply_policy(files);
    }

    /// Replaces the Cluster document of `north`, or removes it if `terms` is empty.
    pub(crate) fn with_terms_of_north(&mut self, terms: &str) {
        let north = POLICY.split("---").find(|document| document.contains("{name: north}")).unwrap();
        let text = POLICY
            .replace(&format!("---{north}"), &if terms.is_empty() { String::new() } else { format!("---{terms}") });
        let files = vec![SourceFile { path: "all.yaml".into(), text }];
        self.apply_policy(files);
    }

    /// [`Self::ready`] with [`RIVALS`]: `east` has joined, is connected, and offers nothing.
    pub(crate) fn with_rivals() -> Self {
        let mut federation = Self::ready();
        federation.also(RIVALS);
        federation.join("east");
        federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("east")], silent: Vec::new() }));
        federation
    }

    /// All three have joined and are connected; `north` offers two nodes of eight big devices, `south` one of four.
    pub(crate) fn ready() -> Self {
        let mut federation = Self::with_policy();
        for name in ["west", "north", "south"] {
            federation.join(name);
        }
        let heard = ["west", "north", "south"].map(cluster).to_vec();
        federation.ok(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }));
        let big = device(81_559, Sharing::Exclusive);
        federation.offer("north", offer(1, &[("n1", 8, big.clone()), ("n2", 8, big.clone())]));
        federation.offer("south", offer(1, &[("s1", 4, big)]));
        federation
    }

    pub(crate) fn join(&mut self, name: &str) {
        let secret_sha256 = format!("{name:0>64}");
        self.ok(Command::InviteCluster(InviteCluster {
            cluster: cluster(name),
            secret_sha256: secret_sha256.clone(),
            ttl: Millis::from_hours(1),
            replace: false,
        }));
        self.ok(Command::JoinCluster(JoinCluster {
            cluster: cluster(name),
            secret_sha256,
            identity_key: format!("ed25519:{name}"),
            certificate_not_after: Timestamp(self.now + 86_400_000),
        }));
    }

    pub(crate) fn offer(&mut self, name: &str, offer: Offer) {
        self.ok(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster(name), offer }));
    }

    pub(crate) fn submit(&mut self, spec: RequestSpec) -> RequestId {
        self.submit_as("alice", spec)
    }

    pub(crate) fn submit_as(&mut self, user: &str, spec: RequestSpec) -> RequestId {
        let submitted_by = format!("spiffe://test.example/user/{user}");
        match self.ok(Command::SubmitRequest(SubmitRequest { spec, submitted_by })).reply {
            Ok(comity_core::ReplyBody::Request(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Plans once and proposes the plan; returns the new leases.
    pub(crate) fn place(&mut self) -> Vec<LeaseId> {
        let placements = scheduler::plan(&self.state, 100).placements;
        match self.ok(Command::PlaceRequests(PlaceRequests { placements })).reply {
            Ok(comity_core::ReplyBody::Placed { leases, refused }) => {
                assert!(refused.is_empty(), "apply refused what was planned from the same state: {refused:?}");
                leases
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn try_apply(&mut self, command: Command) -> Applied {
        self.now += 1;
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::Leader(1),
            generation: 0,
            time: Timestamp(self.now),
            traceparent: String::new(),
            idempotency: None,
            command,
        };
        let applied = self.state.apply(&entry).unwrap();
        self.log.push(entry);
        applied
    }

    pub(crate) fn ok(&mut self, command: Command) -> Applied {
        let applied = self.try_apply(command);
        assert!(applied.reply.is_ok(), "{:?}", applied.reply);
        applied
    }

    pub(crate) fn refused(&mut self, command: Command) -> comity_core::Refusal {
        let before = self.state.revision;
        let refusal = self.try_apply(command).reply.unwrap_err();
        assert_eq!(self.state.revision, before, "a refusal changed the state");
        refusal
    }
}

pub(crate) fn blob(len: usize, fill: u8) -> Blob {
    Blob(vec![fill; len])
}
