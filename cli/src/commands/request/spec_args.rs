//! The flags that describe a request.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use comity_proto::v1;
use serde::Deserialize;

use super::isolation_arg::IsolationArg;
use super::wiring_args::{NumaArg, NvLinkArg};
use crate::commands::completions::known_ids;
use crate::failure::Failure;
use crate::units::{
    DataAmount, DurationBounds, GpuAmount, MemberRange, parse_cpu_milli, parse_data, parse_gbits, parse_gpus,
    parse_members, parse_memory_mib, parse_time_ms,
};
use crate::wire_names::WrittenIn;

// Topics of the help, in its order.
const WHAT: &str = "What";
const WHERE: &str = "Where";
const WHEN: &str = "When";
const SHARING: &str = "Sharing";
const TOPOLOGY: &str = "Topology";
/// Also of the flags that say what happens when something goes wrong.
pub(super) const FAILURES: &str = "Failures";
/// Of the flags that say what a command prints, and when.
pub(crate) const OUTPUT: &str = "Output";

/// How a lease is delivered to the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryArg {
    /// A namespace on the donor, with a kubeconfig for it on your cluster
    #[default]
    Namespace,
    /// A virtual node in your cluster (through Liqo) whose pods run on the donor, unchanged
    VirtualNode,
}

impl From<DeliveryArg> for v1::Delivery {
    fn from(delivery: DeliveryArg) -> Self {
        match delivery {
            DeliveryArg::Namespace => Self::Namespace,
            DeliveryArg::VirtualNode => Self::VirtualNode,
        }
    }
}

/// The flags that describe a request, or the file that does.
#[derive(Clone, Debug, Default, Args)]
pub struct SpecArgs {
    /// Read the request from a YAML file, or from standard input with '-', instead of the flags below
    #[arg(short, long, value_name = "FILE", help_heading = WHAT, conflicts_with_all = [
        "tenant", "origin", "class", "selector", "gpus", "mig", "gpu_memory", "isolation", "cpu_per_gpu",
        "memory_per_gpu", "duration", "same_node", "whole_node", "nvlink", "numa", "rdma_gbits", "spread_nodes", "members",
        "spread_donors", "data", "donor", "not_donor", "delivery", "namespace", "purpose", "note", "priority",
        "start_after", "start_by", "release_idle", "preemptible", "grace", "checkpoint", "same_gpu_type",
        "checkpoint_secret", "template",
    ])]
    pub file: Option<PathBuf>,
    /// Tenant that is accounted for the lease
    #[arg(long, help_heading = WHAT, required_unless_present = "file", add = known_ids::tenants())]
    pub tenant: Option<String>,
    /// Request template that sets the other fields: one of 'comity request templates'
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), help_heading = WHAT,
        add = known_ids::templates())]
    pub template: Option<String>,
    /// GPU class, as in frontier; this, --selector or --template is required
    #[arg(long, value_parser = NonEmptyStringValueParser::new(), help_heading = WHAT, conflicts_with = "selector",
        add = known_ids::classes())]
    pub class: Option<String>,
    /// CEL expression over device attributes, instead of a class
    #[arg(long, value_name = "CEL", value_parser = NonEmptyStringValueParser::new(), help_heading = WHAT,
        hide_short_help = true)]
    pub selector: Option<String>,
    /// Whole GPUs (3), a part of one (0.25), or several equal parts (4x0.25) [default: 1]
    #[arg(long, value_name = "AMOUNT", value_parser = parse_gpus, allow_hyphen_values = true, help_heading = WHAT)]
    pub gpus: Option<GpuAmount>,
    /// CPU per share, as in 8 or 500m
    #[arg(long, value_name = "CPU", value_parser = parse_cpu_milli, allow_hyphen_values = true, help_heading = WHAT)]
    pub cpu_per_gpu: Option<u64>,
    /// Main memory per share, as in 64Gi
    #[arg(long, value_name = "MEMORY", value_parser = parse_memory_mib, allow_hyphen_values = true,
        help_heading = WHAT)]
    pub memory_per_gpu: Option<u64>,
    /// Members of a gang, each with --gpus on one node: 4, or 2-8 to start with at least 2 and grow to at most 8
    #[arg(long, value_name = "NUMBER", value_parser = parse_members, allow_hyphen_values = true,
        help_heading = WHAT, hide_short_help = true)]
    pub members: Option<MemberRange>,
    /// Note on the request, in your words
    #[arg(long, value_name = "TEXT", help_heading = WHAT, hide_short_help = true)]
    pub note: Option<String>,
    /// Your cluster, which gets the kubeconfig or the virtual node
    #[arg(long, value_name = "CLUSTER", help_heading = WHERE, required_unless_present = "file",
        add = known_ids::clusters())]
    pub origin: Option<String>,
    /// How the lease is delivered [default: namespace]
    #[arg(long, value_enum, value_name = "HOW", help_heading = WHERE, hide_short_help = true)]
    pub delivery: Option<DeliveryArg>,
    /// Namespace on your cluster for the kubeconfig Secret [default: comity-leases]; with --delivery virtual-node, the
    /// namespace whose pods may run on the node (required)
    #[arg(long, help_heading = WHERE, hide_short_help = true)]
    pub namespace: Option<String>,
    /// Allow only this donor (repeatable)
    #[arg(long, value_name = "CLUSTER", help_heading = WHERE, add = known_ids::clusters())]
    pub donor: Vec<String>,
    /// Exclude this donor (repeatable)
    #[arg(long, value_name = "CLUSTER", help_heading = WHERE, hide_short_help = true, add = known_ids::clusters())]
    pub not_donor: Vec<String>,
    /// With --members: use several donors, with one lease each, if no single donor has room for the minimum
    #[arg(long, help_heading = WHERE, hide_short_help = true)]
    pub spread_donors: bool,
    /// Dataset that the work reads, and how much of it, as in imagenet-1k=150Gi; prefers donors that hold it or can get
    /// it soon (repeatable)
    #[arg(long, value_name = "NAME=SIZE", value_parser = parse_data, allow_hyphen_values = true,
        help_heading = WHERE, hide_short_help = true)]
    pub data: Vec<DataAmount>,
    /// Purpose for which the work reads the datasets, one of the federation's, as in research
    #[arg(long, value_name = "PURPOSE", value_parser = NonEmptyStringValueParser::new(), help_heading = WHERE,
        hide_short_help = true)]
    pub purpose: Option<String>,
    /// Length of the lease, as in 2h: 10s to 90d [default: the federation's]
    #[arg(long, value_parser = DurationBounds::LEASE.parser(), allow_hyphen_values = true, help_heading = WHEN)]
    pub duration: Option<u64>,
    /// Priority class [default: the federation's]
    #[arg(long, value_name = "CLASS", value_parser = NonEmptyStringValueParser::new(), help_heading = WHEN,
        add = known_ids::priorities())]
    pub priority: Option<String>,
    /// Earliest start: 2026-11-23T08:00Z, or 2h for 2 hours from now
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms, allow_hyphen_values = true, help_heading = WHEN,
        hide_short_help = true)]
    pub start_after: Option<u64>,
    /// Latest start, after which the request fails: 2026-11-23T08:00Z, or 2h for 2 hours from now
    #[arg(long, value_name = "TIME", value_parser = parse_time_ms, allow_hyphen_values = true, help_heading = WHEN,
        hide_short_help = true)]
    pub start_by: Option<u64>,
    /// Release the lease once no work has used it for this long, as in 30m: 10s to 90d [default: the policy's limit, if
    /// any]
    #[arg(long, value_name = "DURATION", value_parser = DurationBounds::RELEASE_IDLE.parser(),
        allow_hyphen_values = true, help_heading = WHEN, hide_short_help = true)]
    pub release_idle: Option<u64>,
    /// MIG profile of each share, named as on the donor's boards, as in 1g.10gb; --gpus gives the number of shares
    #[arg(long, value_name = "PROFILE", help_heading = SHARING, hide_short_help = true, conflicts_with = "gpu_memory")]
    pub mig: Option<String>,
    /// Device memory of each share, as in 10Gi, on a shared device or a MIG instance; --gpus gives the number of shares
    #[arg(long, value_name = "MEMORY", value_parser = parse_memory_mib, allow_hyphen_values = true,
        help_heading = SHARING, hide_short_help = true)]
    pub gpu_memory: Option<u64>,
    /// Isolation of each share from other work on its GPU [default: none]
    #[arg(long, value_enum, value_name = "LEVEL", help_heading = SHARING, hide_short_help = true)]
    pub isolation: Option<IsolationArg>,
    /// Place all GPUs on one node
    #[arg(long, help_heading = TOPOLOGY, hide_short_help = true)]
    pub same_node: bool,
    /// Take whole nodes only
    #[arg(long, help_heading = TOPOLOGY, hide_short_help = true)]
    pub whole_node: bool,
    /// Spread evenly over as many nodes of the donor as have room, to limit the loss if one fails [default: use as few
    /// nodes as possible]
    #[arg(long, conflicts_with_all = ["same_node", "whole_node"], help_heading = TOPOLOGY, hide_short_help = true)]
    pub spread_nodes: bool,
    /// NVLink between the GPUs of each node [default: none]
    #[arg(long, value_enum, value_name = "WISH", help_heading = TOPOLOGY, hide_short_help = true)]
    pub nvlink: Option<NvLinkArg>,
    /// Source of each share's CPU and memory [default: none]
    #[arg(long, value_enum, value_name = "WISH", help_heading = TOPOLOGY, hide_short_help = true)]
    pub numa: Option<NumaArg>,
    /// RDMA bandwidth per node in Gbit/s, on one network, if the GPUs are on several nodes [default: 0]
    #[arg(long, value_name = "GBITS", value_parser = parse_gbits, allow_hyphen_values = true, help_heading = TOPOLOGY,
        hide_short_help = true)]
    pub rdma_gbits: Option<u32>,
    /// Let requests of higher priority preempt it, with notice; it then migrates to another donor or waits again
    #[arg(long, help_heading = FAILURES, hide_short_help = true)]
    pub preemptible: bool,
    /// With --preemptible: notice that the work needs before it ends, 1s to 1d [default: the donor's]
    #[arg(long, value_name = "DURATION", requires = "preemptible", value_parser = DurationBounds::GRACE.parser(),
        allow_hyphen_values = true, help_heading = FAILURES, hide_short_help = true)]
    pub grace: Option<u64>,
    /// With --preemptible: the work reports each save with 'comity lease checkpointed', so that only later progress is
    /// lost
    #[arg(long, requires = "preemptible", help_heading = FAILURES, hide_short_help = true)]
    pub checkpoint: bool,
    /// With --checkpoint: what the work saved fits only the type of GPUs (product, MIG profile) that it ran on, so its
    /// next leases have that type
    #[arg(long, requires = "checkpoint", conflicts_with = "spread_donors", help_heading = FAILURES,
        hide_short_help = true)]
    pub same_gpu_type: bool,
    /// With --delivery virtual-node: Secret in --namespace by which pods on the node reach their checkpoints
    #[arg(long, value_name = "SECRET", value_parser = NonEmptyStringValueParser::new(), help_heading = FAILURES,
        hide_short_help = true)]
    pub checkpoint_secret: Option<String>,
}

impl SpecArgs {
    /// The request as an API message. What is not given stays unset if a template sets it.
    pub(super) fn to_message(&self) -> Result<v1::RequestSpec, Failure> {
        let is_filled = self.template.is_some();
        let amount = self.gpus.unwrap_or(GpuAmount { count: 1, milli: None });
        let leaves_share = is_filled && self.gpus.is_none() && self.mig.is_none() && self.gpu_memory.is_none();
        let leaves_count = is_filled && self.gpus.is_none();
        let delivery = self.delivery.unwrap_or_default();
        if delivery == DeliveryArg::VirtualNode && self.namespace.as_deref().is_none_or(str::is_empty) {
            return Err(Failure::usage("a virtual node needs the namespace whose pods may run on it")
                .field(self.named("--namespace", "namespace"), "")
                .remedy("give a namespace on the origin, as in --namespace lab (in a file: namespace: lab)"));
        }
        self.check_donors()?;
        Ok(v1::RequestSpec {
            tenant: self.tenant.clone().unwrap_or_default(),
            origin: self.origin.clone().unwrap_or_default(),
            gpus: Some(v1::GpuDemand {
                class: self.class.clone().unwrap_or_default(),
                selector: self.selector.clone().unwrap_or_default(),
                share: if leaves_share { None } else { Some(v1::Share { kind: Some(self.share(amount)?) }) },
                count: if leaves_count { 0 } else { amount.count },
                cpu_milli_per_gpu: self.cpu_per_gpu.unwrap_or(0),
                memory_mib_per_gpu: self.memory_per_gpu.unwrap_or(0),
                isolation: v1::Isolation::from(self.isolation.unwrap_or_default()).into(),
            }),
            topology: Some(v1::Topology {
                same_node: self.same_node,
                whole_node: self.whole_node,
                nvlink: v1::NvLink::from(self.nvlink.unwrap_or_default()).into(),
                numa: v1::Numa::from(self.numa.unwrap_or_default()).into(),
                rdma_gbits: self.rdma_gbits.unwrap_or(0),
                spread_nodes: self.spread_nodes,
            }),
            members: self.members.map(|members| v1::Members { min: members.min, desired: members.desired }),
            spread_donors: self.spread_donors,
            data: self.data.iter().map(|data| v1::DataNeed { dataset: data.dataset.clone(), mib: data.mib }).collect(),
            duration_ms: self.duration.unwrap_or(0),
            allow_donors: self.donor.clone(),
            deny_donors: self.not_donor.clone(),
            delivery: match self.delivery {
                None if is_filled => v1::Delivery::Unspecified.into(),
                _ => v1::Delivery::from(delivery).into(),
            },
            target_namespace: self.namespace.clone().unwrap_or_default(),
            purpose: self.purpose.clone().unwrap_or_default(),
            note: self.note.clone().unwrap_or_default(),
            priority: self.priority.clone().unwrap_or_default(),
            not_before_ms: self.start_after.unwrap_or(0),
            start_by_ms: self.start_by.unwrap_or(0),
            release_idle_ms: self.release_idle.unwrap_or(0),
            preemptible: self.preemptible.then(|| v1::Preemptible {
                grace_ms: self.grace.unwrap_or(0),
                checkpoint: self.checkpoint,
                same_gpu_type: self.same_gpu_type,
            }),
            checkpoint_secret: self.checkpoint_secret.clone().unwrap_or_default(),
            template: self.template.clone().unwrap_or_default(),
        })
    }

    /// Where the request is written.
    pub(crate) const fn written_in(&self) -> WrittenIn {
        if self.file.is_some() { WrittenIn::File } else { WrittenIn::Flags }
    }

    /// The name of an argument where it is written.
    pub(super) const fn named(&self, flag: &'static str, file: &'static str) -> &'static str {
        match self.written_in() {
            WrittenIn::Flags => flag,
            WrittenIn::File => file,
        }
    }

    fn check_donors(&self) -> Result<(), Failure> {
        if let Some(both) = self.donor.iter().find(|donor| self.not_donor.contains(donor)) {
            return Err(Failure::usage(format!("{both} is both allowed and excluded as a donor"))
                .field(self.named("--not-donor", "notDonors"), both)
                .remedy("leave out one of the two"));
        }
        match self.donor.iter().find(|donor| Some(donor.as_str()) == self.origin.as_deref()) {
            Some(origin) => Err(Failure::usage(format!("{origin} is the origin, which cannot be its own donor"))
                .field(self.named("--donor", "donors"), origin)
                .remedy("give other clusters, or none to allow any")),
            None => Ok(()),
        }
    }

    fn share(&self, amount: GpuAmount) -> Result<v1::share::Kind, Failure> {
        use v1::share::Kind;
        let not_whole = |with: &str| {
            Failure::usage(format!("{with} sets the size of each share, so the number of shares must be whole"))
                .field(self.named("--gpus", "gpus.amount"), format!("{}m", amount.milli.unwrap_or(0)))
                .remedy("give a whole number of shares, as in --gpus 2 (in a file: amount: 2)")
        };
        match (amount.milli, &self.mig, self.gpu_memory) {
            (Some(_), Some(_), _) => Err(not_whole("a MIG profile")),
            (Some(_), _, Some(_)) => Err(not_whole("GPU memory")),
            (_, Some(profile), _) if comity_policy::is_mig_profile(profile) => Ok(Kind::MigProfile(profile.clone())),
            (_, Some(profile), _) => Err(Failure::usage(format!("{profile:?} is not the name of a MIG profile"))
                .field(self.named("--mig", "gpus.mig"), profile)
                .remedy("use a name that nvidia-smi mig -lgip shows, such as 1g.10gb or 1g.10gb+me")),
            (_, _, Some(memory)) => Ok(Kind::MemoryMib(memory)),
            (Some(milli), None, None) => Ok(Kind::Milli(milli)),
            (None, None, None) => Ok(Kind::Whole(v1::share::Whole {})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Option<GpuAmount> {
        parse_gpus(text).ok()
    }

    #[test]
    fn flags_become_a_spec() {
        let args = SpecArgs {
            tenant: Some("poly-ml".to_owned()),
            origin: Some("polytech-campus".to_owned()),
            class: Some("midrange".to_owned()),
            gpus: amount("0.25"),
            cpu_per_gpu: Some(8_000),
            same_node: true,
            nvlink: Some(NvLinkArg::Required),
            numa: Some(NumaArg::Aligned),
            rdma_gbits: Some(200),
            members: parse_members("2-8").ok(),
            spread_donors: true,
            data: parse_data("imagenet-1k=150Gi").into_iter().collect(),
            purpose: Some("research".to_owned()),
            note: Some("for the spring course".to_owned()),
            ..SpecArgs::default()
        };
        let spec = args.to_message().expect("it is good");
        let topology = spec.topology.expect("set");
        assert_eq!((topology.nvlink(), topology.numa()), (v1::NvLink::Required, v1::Numa::Aligned));
        assert!(spec.spread_donors);
        assert_eq!(spec.data, [v1::DataNeed { dataset: "imagenet-1k".to_owned(), mib: 153_600 }]);
        assert_eq!((spec.purpose.as_str(), spec.note.as_str()), ("research", "for the spring course"));
        assert_eq!((topology.rdma_gbits, spec.members), (200, Some(v1::Members { min: 2, desired: 8 })));
        let gpus = spec.gpus.expect("set");
        assert_eq!((gpus.count, gpus.cpu_milli_per_gpu, gpus.class.as_str()), (1, 8_000, "midrange"));
        assert_eq!(gpus.share.and_then(|share| share.kind), Some(v1::share::Kind::Milli(250)));
        assert_eq!(spec.delivery, i32::from(v1::Delivery::Namespace));
        assert!(spec.topology.is_some_and(|topology| topology.same_node && !topology.whole_node));
    }

    #[test]
    fn what_is_not_given_is_left_to_the_template() {
        let args = SpecArgs { template: Some("notebook-small".to_owned()), ..SpecArgs::default() };
        let spec = args.to_message().expect("good");
        let gpus = spec.gpus.clone().expect("set");
        assert_eq!((spec.template.as_str(), spec.delivery, gpus.count, gpus.share), ("notebook-small", 0, 0, None));
        let more = SpecArgs { gpus: amount("2"), delivery: Some(DeliveryArg::Namespace), ..args.clone() };
        let spec = more.to_message().expect("good");
        let whole = Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) });
        assert_eq!(
            (spec.delivery(), spec.gpus.map(|gpus| (gpus.count, gpus.share))),
            (v1::Delivery::Namespace, Some((2, whole)))
        );
        let gpus = SpecArgs { mig: Some("1g.10gb".to_owned()), ..args }.to_message().expect("good").gpus.expect("set");
        assert_eq!((gpus.count, gpus.share.is_some()), (0, true));
    }

    #[test]
    fn a_virtual_node_needs_a_namespace_to_serve() {
        let args = SpecArgs { delivery: Some(DeliveryArg::VirtualNode), ..SpecArgs::default() };
        let failure = args.to_message().expect_err("none is named");
        assert_eq!((failure.exit.number(), failure.field.as_str()), (2, "--namespace"));
        assert!(failure.remedy.contains("--namespace lab"), "{failure:?}");
        let spec = SpecArgs { namespace: Some("lab".to_owned()), ..args }.to_message().expect("good");
        assert_eq!((spec.delivery(), spec.target_namespace.as_str()), (v1::Delivery::VirtualNode, "lab"));
    }

    #[test]
    fn shares_are_whole_mig_or_memory_but_not_two_at_once() {
        let mig = SpecArgs { mig: Some("1g.10gb".to_owned()), gpus: amount("2"), ..SpecArgs::default() };
        let gpus = mig.to_message().expect("good").gpus.expect("set");
        assert_eq!(gpus.share.and_then(|s| s.kind), Some(v1::share::Kind::MigProfile("1g.10gb".to_owned())));
        assert_eq!(gpus.count, 2);
        let both = SpecArgs { gpu_memory: Some(10_240), gpus: amount("0.5"), ..SpecArgs::default() };
        let failure = both.to_message().expect_err("both");
        assert_eq!((failure.exit.number(), failure.field.as_str(), failure.value.as_str()), (2, "--gpus", "500m"));
    }

    #[test]
    fn impossible_values_are_named() {
        let refused = |change: &dyn Fn(&mut SpecArgs)| {
            let mut args = SpecArgs { origin: Some("here".to_owned()), ..SpecArgs::default() };
            change(&mut args);
            let failure = args.to_message().expect_err("refused");
            (failure.exit, failure.field, failure.value)
        };
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let usage = |field: &str, value: &str| (crate::exit::Exit::Usage, field.to_owned(), value.to_owned());
        let both = refused(&|args| (args.donor, args.not_donor) = (named(&["a", "b"]), named(&["b"])));
        assert_eq!(both, usage("--not-donor", "b"));
        assert_eq!(refused(&|args| args.donor = named(&["here"])), usage("--donor", "here"));
        assert_eq!(refused(&|args| args.mig = Some("bad profile!".to_owned())), usage("--mig", "bad profile!"));
    }
}
