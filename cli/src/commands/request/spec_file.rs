//! Reads a request from a YAML file, which has the same fields as the flags and no unknown ones.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use comity_runtime::strict_yaml::{self, Mistake};
use serde::{Deserialize, Deserializer};

use super::isolation_arg::IsolationArg;
use super::spec_args::{DeliveryArg, SpecArgs};
use super::wiring_args::{NumaArg, NvLinkArg};
use crate::failure::Failure;
use crate::units::{
    DataAmount, DurationBounds, GpuAmount, MemberRange, parse_cpu_milli, parse_gpus, parse_members, parse_memory_mib,
    parse_time_ms,
};

/// Largest file accepted; a request is at most a page.
const MAX_BYTES: u64 = 64 << 10;

/// A complete request file, as `comity request example` prints it.
pub(super) const FILE_EXAMPLE: &str = "\
tenant: poly-ml
origin: polytech-campus
gpus:
  class: midrange        # or selector: device.memoryMiB >= 40000
  amount: 0.25           # or 3, or 4x0.25; or mig: 1g.10gb, or memory: 10Gi
  isolation: memory      # or hardware: of each share from other work on its GPU
  cpuPerGpu: 8
  memoryPerGpu: 64Gi
topology:
  sameNode: true         # or wholeNode: true
  nvlink: preferred      # or required: NVLink between the GPUs of each node
  numa: aligned          # CPU and memory from the NUMA node of each GPU
  rdmaGbits: 0           # per node, if the GPUs are on several nodes
  spreadNodes: false     # true: over as many nodes as have room; excludes sameNode, wholeNode
members: 2-4             # a gang, each member with `gpus` on one node: at least 2, at most 4
spreadDonors: false      # true: members may be on several donors (needs members)
data:                    # read by the work; prefers donors that hold it or can get it soon
- {dataset: imagenet-1k, size: 150Gi}
duration: 2h
donors: []               # allow only these; notDonors excludes donors
delivery: namespace      # or virtual-node: pods of `namespace` run on the donor, unchanged
namespace: comity-leases
note: fine-tuning for the spring course
priority: urgent         # a PriorityClass of the policy
startAfter: 30m          # from now, or a time such as 2026-11-23T08:00Z
startBy: 8h              # latest start, after which the request fails
releaseIdle: 30m         # the lease is released once no work has used it for this long
preemptible:             # requests of higher priority may preempt it
  grace: 10m             # notice that the work needs
  checkpoint: true       # the work reports when it is saved
  sameGpuType: true      # and continues only on GPUs of the same type
# template: notebook-small   # a RequestTemplate: sets what is left out here ('comity request templates')
# purpose: research      # for which the work reads `data`: one that the Federation declares
# checkpointSecret: bucket   # delivery virtual-node only: Secret by which its pods reach their checkpoints
";

/// The fields of the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpecFile {
    tenant: String,
    origin: String,
    template: Option<String>,
    gpus: Option<FileGpus>,
    #[serde(default)]
    topology: FileTopology,
    #[serde(default, deserialize_with = "members")]
    members: Option<MemberRange>,
    #[serde(default)]
    spread_donors: bool,
    #[serde(default)]
    data: Vec<FileData>,
    #[serde(default, deserialize_with = "duration")]
    duration: Option<u64>,
    #[serde(default)]
    donors: Vec<String>,
    #[serde(default)]
    not_donors: Vec<String>,
    #[serde(default)]
    delivery: Option<DeliveryArg>,
    namespace: Option<String>,
    purpose: Option<String>,
    note: Option<String>,
    priority: Option<String>,
    #[serde(default, deserialize_with = "time")]
    start_after: Option<u64>,
    #[serde(default, deserialize_with = "time")]
    start_by: Option<u64>,
    #[serde(default, deserialize_with = "idle_time")]
    release_idle: Option<u64>,
    preemptible: Option<FilePreemptible>,
    checkpoint_secret: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FilePreemptible {
    #[serde(deserialize_with = "notice")]
    grace: Option<u64>,
    checkpoint: bool,
    same_gpu_type: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileGpus {
    class: Option<String>,
    selector: Option<String>,
    #[serde(default, deserialize_with = "amount")]
    amount: Option<GpuAmount>,
    mig: Option<String>,
    #[serde(default, deserialize_with = "memory")]
    memory: Option<u64>,
    isolation: Option<IsolationArg>,
    #[serde(default, deserialize_with = "cpu")]
    cpu_per_gpu: Option<u64>,
    #[serde(default, deserialize_with = "memory")]
    memory_per_gpu: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileTopology {
    same_node: bool,
    whole_node: bool,
    nvlink: Option<NvLinkArg>,
    numa: Option<NumaArg>,
    rdma_gbits: Option<u32>,
    spread_nodes: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileData {
    dataset: String,
    #[serde(deserialize_with = "memory")]
    size: Option<u64>,
}

/// Parses a scalar as text, so that `3` and `0.25` need no quotes and never become floating point.
fn parse_scalar<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map(Some).map_err(serde::de::Error::custom)
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GpuAmount>, D::Error> {
    parse_scalar(deserializer, parse_gpus)
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, parse_memory_mib)
}

fn cpu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, parse_cpu_milli)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, |text| DurationBounds::LEASE.parse(text))
}

fn notice<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, |text| DurationBounds::GRACE.parse(text))
}

fn idle_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, |text| DurationBounds::RELEASE_IDLE.parse(text))
}

fn members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MemberRange>, D::Error> {
    parse_scalar(deserializer, parse_members)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    parse_scalar(deserializer, parse_time_ms)
}

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// [`Failure`] with file, line and column.
pub(super) fn read(path: &Path) -> Result<SpecArgs, Failure> {
    let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    let text = read_text(path).map_err(|error| {
        Failure::usage(format!("cannot read the request from {name}: {error}")).field("--file", path.display())
    })?;
    parse(&name, &text)
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().take(MAX_BYTES + 1).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    }
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it is larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

fn parse(name: &str, text: &str) -> Result<SpecArgs, Failure> {
    let file: SpecFile = strict_yaml::read(text).map_err(|mistakes| {
        let shown = |mistake: &Mistake| {
            let place = if mistake.line > 0 { format!(":{}:{}", mistake.line, mistake.column) } else { String::new() };
            let text = if mistake.text.is_empty() { String::new() } else { format!(": {:?}", mistake.text) };
            format!("{name}{place}: invalid request file: {}{text}", mistake.problem)
        };
        let shown: Vec<String> = mistakes.iter().map(shown).collect();
        Failure::usage(shown.join("; ")).remedy("'comity request example' prints a complete file")
    })?;
    let has_template = file.template.is_some();
    if file.gpus.is_none() && !has_template {
        let failure = Failure::usage(format!("{name}: neither gpus nor a template is given")).field("gpus", "");
        return Err(failure.remedy("describe the GPUs, as in gpus: {class: frontier, amount: 2}, or name a template"));
    }
    let gpus = file.gpus.unwrap_or_default();
    let devices = match (&gpus.class, &gpus.selector) {
        (None, None) if has_template => None,
        (None, None) => Some("names neither a class nor a selector"),
        (Some(_), Some(_)) => Some("names a class and a selector"),
        _ => None,
    };
    if let Some(problem) = devices {
        let failure = Failure::usage(format!("{name}: gpus {problem}"));
        return Err(failure.field("gpus.class", gpus.class.unwrap_or_default()).remedy("name one of the two"));
    }
    if gpus.mig.is_some() && gpus.memory.is_some() {
        return Err(Failure::usage(format!("{name}: gpus names a MIG profile and memory"))
            .field("gpus.mig", gpus.mig.unwrap_or_default())
            .remedy("name one of the two"));
    }
    Ok(SpecArgs {
        file: Some(PathBuf::from(name)),
        tenant: Some(file.tenant),
        origin: Some(file.origin),
        template: file.template,
        class: gpus.class,
        selector: gpus.selector,
        gpus: gpus.amount,
        mig: gpus.mig,
        gpu_memory: gpus.memory,
        isolation: gpus.isolation,
        cpu_per_gpu: gpus.cpu_per_gpu,
        memory_per_gpu: gpus.memory_per_gpu,
        duration: file.duration,
        same_node: file.topology.same_node,
        whole_node: file.topology.whole_node,
        nvlink: file.topology.nvlink,
        numa: file.topology.numa,
        rdma_gbits: file.topology.rdma_gbits,
        spread_nodes: file.topology.spread_nodes,
        members: file.members,
        spread_donors: file.spread_donors,
        data: file
            .data
            .into_iter()
            .map(|data| DataAmount { dataset: data.dataset, mib: data.size.unwrap_or(0) })
            .collect(),
        donor: file.donors,
        not_donor: file.not_donors,
        delivery: file.delivery,
        namespace: file.namespace,
        purpose: file.purpose,
        note: file.note,
        priority: file.priority,
        start_after: file.start_after,
        start_by: file.start_by,
        release_idle: file.release_idle,
        preemptible: file.preemptible.is_some(),
        grace: file.preemptible.as_ref().and_then(|it| it.grace),
        checkpoint: file.preemptible.as_ref().is_some_and(|it| it.checkpoint),
        same_gpu_type: file.preemptible.is_some_and(|it| it.same_gpu_type),
        checkpoint_secret: file.checkpoint_secret,
    })
}

#[cfg(test)]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn request_files() {
        let short = "tenant: t\norigin: o\ngpus: {selector: a > 1, mig: 1g.10gb, cpuPerGpu: 0.5}\nstartBy: 8h\n";
        let valid = [FILE_EXAMPLE, short].map(|text| text.as_bytes().to_vec()).to_vec();
        fuzz!("request_file", valid, |bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return false };
            match parse("request.yaml", text) {
                Ok(args) => {
                    let _ = args.to_message();
                    true
                }
                Err(failure) => {
                    let reason = failure.reason;
                    assert!(reason.contains("request.yaml") && !reason.contains(char::is_control), "{reason:?}");
                    false
                }
            }
        });
    }

    #[test]
    fn the_example_in_the_help_parses() {
        let args = parse("request.yaml", FILE_EXAMPLE).expect("the example is good");
        assert_eq!(args.gpus, Some(GpuAmount { count: 1, milli: Some(250) }));
        assert_eq!(
            (args.cpu_per_gpu, args.memory_per_gpu, args.duration),
            (Some(8_000), Some(65_536), Some(7_200_000))
        );
        assert!(args.same_node && args.to_message().is_ok());
        assert_eq!(args.isolation, Some(IsolationArg::Memory));
        assert_eq!((args.nvlink, args.numa), (Some(NvLinkArg::Preferred), Some(NumaArg::Aligned)));
        assert_eq!(args.members.map(|members| (members.min, members.desired)), Some((2, 4)));
        assert_eq!(args.data, [DataAmount { dataset: "imagenet-1k".to_owned(), mib: 153_600 }]);
        assert_eq!((args.priority.as_deref(), args.release_idle), (Some("urgent"), Some(1_800_000)));
        assert_eq!((args.preemptible, args.grace), (true, Some(600_000)));
        assert!(args.checkpoint && args.same_gpu_type);
        assert!(args.start_by.is_some_and(|start_by| args.start_after.is_some_and(|after| after < start_by)));
        let by_node = FILE_EXAMPLE
            .replace("delivery: namespace ", "delivery: virtual-node ")
            .replace("# checkpointSecret", "checkpointSecret");
        let spec = parse("request.yaml", &by_node).and_then(|args| args.to_message()).expect("good");
        assert_eq!(spec.delivery(), comity_proto::v1::Delivery::VirtualNode);
        assert_eq!(spec.checkpoint_secret, "bucket");
    }

    #[test]
    fn a_template_stands_for_the_gpus() {
        let spec = |text: &str| parse("f", text).and_then(|args| args.to_message()).expect("good");
        let filled = spec("tenant: t\norigin: o\ntemplate: notebook-small\n");
        assert_eq!((filled.template.as_str(), filled.delivery), ("notebook-small", 0));
        let more = spec("tenant: t\norigin: o\ntemplate: notebook-small\ngpus: {amount: 2}\n");
        assert_eq!(more.gpus.map(|gpus| (gpus.class, gpus.count)), Some((String::new(), 2)));
    }

    #[test]
    fn numbers_and_strings_are_amounts() {
        for (written, milli) in [("3", None), ("\"3\"", None), ("0.5", Some(500)), ("500m", Some(500))] {
            let text = format!("tenant: t\norigin: o\ngpus: {{class: c, amount: {written}}}\n");
            assert_eq!(parse("f", &text).expect(written).gpus.and_then(|gpus| gpus.milli), milli);
        }
    }

    #[test]
    fn problems_are_described_in_plain_words() {
        let good = "tenant: t\norigin: o\ngpus: {class: c}\n";
        for (more, word) in [
            ("preemptible: true\n", "expected fields, as in {field: value}"),
            ("donors: one\n", "expected a list"),
            ("topology: {rdmaGbits: many}\n", "expected a whole number"),
            ("topology: {sameNode: 3}\n", "sameNode: 3"),
            ("tenant: u\n", "tenant is given twice"),
            ("---\ntenant: u\n", "several documents"),
        ] {
            let failure = parse("f", &format!("{good}{more}")).expect_err(more);
            assert!(failure.reason.contains(word), "{}", failure.reason);
            let advice = ["Options", "from_str", "from_multiple", "u32", "mapping start", "serde", "Policy"];
            assert!(!advice.iter().any(|word| failure.reason.contains(word)), "{}", failure.reason);
            assert!(!failure.reason.contains('\n'), "{}", failure.reason);
        }
    }

    #[test]
    fn problems_have_line_and_column() {
        for (text, place, word) in [
            ("tenant: t\norigin: o\ngpus:\n  class: c\n  amuont: 3\n", "f:5:3", "amuont"),
            ("tenant: t\norigin: o\ngpus: {class: c, amount: 2.5}\n", "f:3:", "neither whole GPUs"),
            ("tenant: t\norigin: o\ngpus: {class: c}\nduration: 2\n", "f:4:", "1h30m"),
            ("tenant: t\norigin: o\ngpus: {class: c}\nreleaseIdle: 5s\n", "f:4:", "10s to 90d"),
            ("tenant: t\norigin: o\ngpus: {class: c}\npreemptible: {grcae: 1m}\n", "f:4:", "grcae"),
            ("tenant: t\norigin: o\ngpus: {class: c}\ndelivery: node\n", "f:4:", "virtual-node"),
            ("tenant: t\norigin: o\ngpus: {class: c}\nstartBy: friday\n", "f:4:", "2026-11-23T08:00Z"),
            ("tenant: t\norigin: o\ngpus: {class: c}\nmembers: 8-2\n", "f:4:", "swapped"),
            ("tenant: t\norigin: o\ngpus: {class: c}\ntopology: {nvlink: yes}\n", "f:4:", "preferred"),
            ("tenant: t\norigin: o\ngpus: {class: c, isolation: full}\n", "f:3:", "hardware"),
            ("tenant: t\norigin: o\ngpus: {class: c}\ndata: [{dataset: a, size: 3 rows}]\n", "f:4:", "size"),
            ("tenant: [a]\norigin: o\ngpus: {class: c}\n", "f:1:", "tenant"),
            ("tenant: t\ngpus: {class: c}\n", "f", "origin"),
            ("tenant: t\ntenant: u\norigin: o\ngpus: {class: c}\n", "f:2:", "tenant"),
            ("tenant: t\norigin: o\ngpus: {}\n", "f", "neither a class"),
            ("tenant: t\norigin: o\n", "f", "neither gpus nor a template"),
            ("tenant: t\norigin: o\ngpus: {class: c, mig: 1g.10gb, memory: 1Gi}\n", "f", "MIG"),
            ("- a\n", "f", "file"),
            ("a: [", "f", "file"),
            ("", "f", "file"),
        ] {
            let failure = parse("f", text).expect_err(text);
            assert_eq!(failure.exit.number(), 2);
            assert!(
                failure.reason.starts_with(place) && failure.reason.contains(word),
                "{place} {word}: {}",
                failure.reason
            );
            assert!(!failure.remedy.is_empty());
        }
    }
}
