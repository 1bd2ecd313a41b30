//! Rewrites the fields in a broker's refusal as flags or as fields of a request file, with their units, for people.
//! Scripts (`-o json`) get the broker's text unchanged.

use crate::units::{format_duration, format_memory, format_time};

/// Where the caller wrote the fields of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WrittenIn {
    /// On the command line.
    #[default]
    Flags,
    /// In a request file.
    File,
}

/// A field of the API, and what people write for it.
struct FieldName {
    wire: &'static str,
    flag: &'static str,
    file: &'static str,
}

const fn name(wire: &'static str, flag: &'static str, file: &'static str) -> FieldName {
    FieldName { wire, flag, file }
}

/// Names that are replaced wherever they occur. A field must precede every field whose name is its prefix.
const FIELD_NAMES: &[FieldName] = &[
    name("spec.preemptible.checkpoint", "--checkpoint", "preemptible.checkpoint"),
    name("spec.preemptible.same_gpu_type", "--same-gpu-type", "preemptible.sameGpuType"),
    name("spec.preemptible.grace_ms", "--grace", "preemptible.grace"),
    name("spec.preemptible", "--preemptible", "preemptible"),
    name("spec.gpus.share.mig_profile", "--mig", "gpus.mig"),
    name("spec.gpus.share.memory_mib", "--gpu-memory", "gpus.memory"),
    name("spec.gpus.share.milli", "--gpus", "gpus.amount"),
    name("spec.gpus.share.whole", "--gpus", "gpus.amount"),
    name("spec.gpus.share", "--gpus", "gpus.amount"),
    name("spec.gpus.isolation", "--isolation", "gpus.isolation"),
    name("spec.gpus.cpu_milli_per_gpu", "--cpu-per-gpu", "gpus.cpuPerGpu"),
    name("spec.gpus.memory_mib_per_gpu", "--memory-per-gpu", "gpus.memoryPerGpu"),
    name("spec.gpus.selector", "--selector", "gpus.selector"),
    name("spec.gpus.class", "--class", "gpus.class"),
    name("spec.gpus.count", "--gpus", "gpus.amount"),
    name("spec.gpus", "--gpus", "gpus"),
    name("spec.topology.same_node", "--same-node", "topology.sameNode"),
    name("spec.topology.whole_node", "--whole-node", "topology.wholeNode"),
    name("spec.topology.rdma_gbits", "--rdma-gbits", "topology.rdmaGbits"),
    name("spec.topology.spread_nodes", "--spread-nodes", "topology.spreadNodes"),
    name("spec.topology.nvlink", "--nvlink", "topology.nvlink"),
    name("spec.topology.numa", "--numa", "topology.numa"),
    name("spec.members.desired", "--members", "members"),
    name("spec.members.min", "--members", "members"),
    name("spec.members", "--members", "members"),
    name("spec.spread_donors", "--spread-donors", "spreadDonors"),
    name("spec.data", "--data", "data"),
    name("].mib", "].size", "].size"),
    name("spec.target_namespace", "--namespace", "namespace"),
    name("spec.not_before_ms", "--start-after", "startAfter"),
    name("spec.start_by_ms", "--start-by", "startBy"),
    name("spec.release_idle_ms", "--release-idle", "releaseIdle"),
    name("spec.duration_ms", "--duration", "duration"),
    name("duration_ms", "--duration", "--duration"),
    name("ttl_ms", "--ttl", "--ttl"),
    name("set may_shorten", "add --shorten", "add --shorten"),
    name("may_shorten", "--shorten", "--shorten"),
    name("add_learner.raft_address", "--raft-address", "--raft-address"),
    name("add_learner.client_address", "--client-address", "--client-address"),
    name("raft_address", "--raft-address", "--raft-address"),
    name("client_address", "--client-address", "--client-address"),
    name("idempotency_key", "--idempotency-key", "--idempotency-key"),
    name("spec.allow_donors", "--donor", "donors"),
    name("spec.deny_donors", "--not-donor", "notDonors"),
    name("spec.delivery", "--delivery", "delivery"),
    name("spec.checkpoint_secret", "--checkpoint-secret", "checkpointSecret"),
    name("spec.priority", "--priority", "priority"),
    name("spec.template", "--template", "template"),
    name("spec.purpose", "--purpose", "purpose"),
    name("spec.note", "--note", "note"),
    name("spec.tenant", "--tenant", "tenant"),
    name("spec.origin", "--origin", "origin"),
    name("set queue_anyway", "add --queue-anyway", "add --queue-anyway"),
    name("set allow_unknown", "add --allow-unknown", "add --allow-unknown"),
];

/// Fields whose names are words of plain English: replaced only where the field itself is named.
const WORDS: &[(&str, &str)] = &[
    ("tenant", "--tenant"),
    ("lease", "<LEASE>"),
    ("request", "<REQUEST>"),
    ("cluster", "<CLUSTER>"),
    ("peering", "<PEERING>"),
    ("user", "<NAME>"),
    ("institution", "<INSTITUTION>"),
    ("id", "<NUMBER>"),
    ("invitation", "<ID>"),
    ("broker", "<NUMBER>"),
    ("secret", "<TOKEN>"),
    ("repository", "<REPOSITORY>"),
    ("branch", "--branch"),
    ("folder", "--folder"),
    ("interval_ms", "--interval"),
    ("bundle.commit", "--commit"),
    ("bundle", "<DIR>"),
    ("include_ended", "--all"),
    ("include_closed", "--all"),
    ("queue_anyway", "--queue-anyway"),
    ("dry_run", "--dry-run"),
    ("replace", "--replace"),
    ("force", "--force"),
    ("expected_hash", "--expected-hash"),
];
/// What brokers send in place of a secret.
const REDACTED: &str = "[redacted]";
/// Smaller numbers in a text about datasets are taken for indexes in the list, which has 16 items at most.
const FIRST_SIZE_MIB: u64 = 16;
const MIB_PER_TIB: u64 = 1 << 20;
/// Start of the year 2000: smaller numbers are not taken for times.
const FIRST_TIME_MS: u64 = 946_684_800_000;

/// Names a field as the caller wrote it.
pub(crate) fn field_as_written(written_in: WrittenIn, field: &str) -> String {
    let word = WORDS.iter().find(|(wire, _)| *wire == field);
    word.map_or_else(|| as_written(written_in, field, field), |(_, typed)| (*typed).to_owned())
}

/// A field's value as the caller wrote it; empty for a flag that takes none, and for a secret.
pub(crate) fn value_as_written(written_in: WrittenIn, field: &str, value: &str) -> String {
    let is_flag = written_in == WrittenIn::Flags && field_as_written(written_in, field).starts_with("--");
    if value == REDACTED || is_flag && matches!(value, "true" | "false") {
        return String::new();
    }
    as_written(written_in, field, value)
}

/// Rewrites `text`, part of a refusal about `field`, with the names and units that the caller wrote. What is in
/// backticks stays: fields of policy documents, some of which are named like those of requests, and commands.
pub(crate) fn as_written(written_in: WrittenIn, field: &str, text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { renamed(written_in, field, part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

fn renamed(written_in: WrittenIn, field: &str, text: &str) -> String {
    let mut text = in_units(field, text);
    for name in FIELD_NAMES {
        let typed = match written_in {
            WrittenIn::Flags => name.flag,
            WrittenIn::File => name.file,
        };
        if written_in == WrittenIn::Flags {
            // Such a flag takes no value.
            text = text.replace(&format!("{} \"true\"", name.wire), typed);
        }
        text = text.replace(name.wire, typed);
    }
    text
}

/// Rewrites each number in the unit that the field's flag takes.
fn in_units(field: &str, text: &str) -> String {
    match field {
        "spec.duration_ms" | "duration_ms" | "ttl_ms" | "spec.preemptible.grace_ms" | "spec.release_idle_ms" => {
            map_numbers(text, |ms| if ms < 1_000 { ms.to_string() } else { format_duration(ms) })
        }
        "spec.not_before_ms" | "spec.start_by_ms" => {
            map_numbers(&text.replace("in milliseconds since 1970 ", ""), |ms| {
                moment(ms).unwrap_or_else(|| ms.to_string())
            })
        }
        "spec.gpus.share.memory_mib" | "spec.gpus.memory_mib_per_gpu" => map_numbers(text, |mib| format!("{mib}Mi")),
        "spec.gpus.cpu_milli_per_gpu" => map_numbers(text, |milli| format!("{milli}m")),
        // The index in the list is no amount.
        field if field.starts_with("spec.data[") && field.ends_with(".mib") => {
            map_numbers(&text.replace(" MiB", ""), |mib| {
                if mib < FIRST_SIZE_MIB { mib.to_string() } else { dataset_size(mib) }
            })
        }
        _ => text.to_owned(),
    }
}

fn dataset_size(mib: u64) -> String {
    if mib.is_multiple_of(MIB_PER_TIB) { format!("{}Ti", mib / MIB_PER_TIB) } else { format_memory(mib) }
}

fn moment(ms: u64) -> Option<String> {
    if ms >= FIRST_TIME_MS { format_time(ms) } else { None }
}

/// Applies `change` to each whole number that is a word of its own.
fn map_numbers(text: &str, change: impl Fn(u64) -> String) -> String {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let (mut out, mut word) = (String::new(), String::new());
    for letter in text.chars().chain(Some('\0')) {
        if is_word(letter) {
            word.push(letter);
            continue;
        }
        match word.parse::<u64>() {
            Ok(number) => out.push_str(&change(number)),
            Err(_) => out.push_str(&word),
        }
        word.clear();
        if letter != '\0' {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn fields_and_units_are_those_of_the_flags() {
        for (field, text, expected) in [
            ("spec.gpus.count", "spec.gpus.count \"5000\" is out of range", "--gpus \"5000\" is out of range"),
            ("spec.allow_donors[1]", "spec.allow_donors[1]", "--donor[1]"),
            (
                "spec.duration_ms",
                "spec.duration_ms \"1000\" is out of range; use 10000 to 7776000000, or leave it out for the default",
                "--duration \"1s\" is out of range; use 10s to 90d, or leave it out for the default",
            ),
            (
                "duration_ms",
                "duration_ms \"8640000000\" is out of range; use 10000 to 7776000000, or leave it out for the \
                 present term",
                "--duration \"100d\" is out of range; use 10s to 90d, or leave it out for the present term",
            ),
            (
                "spec.start_by_ms",
                "name a time in milliseconds since 1970 that is after 1772395200000, or none",
                "name a time that is after 2026-03-01T20:00:00Z, or none",
            ),
            ("spec.gpus.memory_mib_per_gpu", "use at most 1099511627776", "use at most 1099511627776Mi"),
            (
                "spec.spread_donors",
                "spec.spread_donors \"true\" is asked for without spec.members",
                "--spread-donors is asked for without --members",
            ),
            (
                "may_shorten",
                "renew it with a longer duration_ms, or set may_shorten to let it end earlier",
                "renew it with a longer --duration, or add --shorten to let it end earlier",
            ),
            (
                "spec.data[0].mib",
                "spec.data[0].mib \"17592184995840\" is out of range; say how much is read, 1 to 1099511627776 MiB",
                "--data[0].size \"16777215Ti\" is out of range; say how much is read, 1 to 1048576Ti",
            ),
            ("lease", "no lease \"lease-99\"", "no lease \"lease-99\""),
        ] {
            assert_eq!(as_written(WrittenIn::Flags, field, text), expected);
        }
    }

    #[test]
    fn flags_without_a_value_and_secrets_show_none() {
        let shown = |written_in, field, value| value_as_written(written_in, field, value);
        assert_eq!(shown(WrittenIn::Flags, "may_shorten", "false"), "");
        assert_eq!(shown(WrittenIn::Flags, "spec.spread_donors", "true"), "");
        assert_eq!(shown(WrittenIn::File, "spec.spread_donors", "true"), "true");
        assert_eq!(shown(WrittenIn::Flags, "secret", "[redacted]"), "");
        assert_eq!(shown(WrittenIn::Flags, "id", "9"), "9");
        assert_eq!(field_as_written(WrittenIn::Flags, "add_learner.raft_address"), "--raft-address");
    }

    #[test]
    fn a_file_has_its_own_names() {
        let text = "spec.gpus.cpu_milli_per_gpu \"9\" contradicts spec.topology.same_node";
        let shown = as_written(WrittenIn::File, "spec.gpus.cpu_milli_per_gpu", text);
        assert_eq!(shown, "gpus.cpuPerGpu \"9m\" contradicts topology.sameNode");
        assert_eq!(field_as_written(WrittenIn::File, "spec.deny_donors[1]"), "notDonors[1]");
        assert_eq!(field_as_written(WrittenIn::Flags, "lease"), "<LEASE>");
    }

    #[test]
    fn fields_of_policy_documents_keep_their_names() {
        let remedy =
            "ask a maintainer to add this to `spec.members` of Tenant poly-ml: `- {id: \"x\", role: submitter}`";
        for written_in in [WrittenIn::Flags, WrittenIn::File] {
            assert_eq!(as_written(written_in, "spec.tenant", remedy), remedy);
        }
        let mixed = "`spec.members` of Tenant t does not name you; set spec.tenant";
        assert_eq!(
            as_written(WrittenIn::Flags, "", mixed),
            "`spec.members` of Tenant t does not name you; set --tenant"
        );
    }

    /// Fields that this client always sets rightly.
    const OURS: [&str; 5] = ["page", "consistency", "csr_der", "spec", "spec.topology"];

    /// The paths of all fields of a message.
    fn paths(
        messages: &BTreeMap<String, prost_types::DescriptorProto>,
        message: &str,
        above: &str,
        found: &mut Vec<String>,
    ) {
        for field in &messages[message].field {
            let path = format!("{above}{}", field.name());
            let below = field.type_name().trim_start_matches('.');
            let is_request = path.starts_with("spec") && messages.contains_key(below);
            if is_request && !path.starts_with("spec.data") {
                paths(messages, below, &format!("{path}."), found);
            }
            found.push(path);
        }
    }

    #[test]
    fn every_field_that_the_broker_can_refuse_has_a_name_that_people_write() {
        let files = <prost_types::FileDescriptorSet as prost::Message>::decode(comity_proto::FILE_DESCRIPTOR_SET)
            .expect("descriptors");
        let mut messages = BTreeMap::new();
        for file in files.file {
            let package = file.package().to_owned();
            for message in file.message_type {
                for nested in &message.nested_type {
                    let name = format!("{package}.{}.{}", message.name(), nested.name());
                    messages.insert(name, nested.clone());
                }
                messages.insert(format!("{package}.{}", message.name()), message);
            }
        }
        let mut found = Vec::new();
        for message in [
            "SubmitRequestRequest",
            "QuoteRequestRequest",
            "GetRequestRequest",
            "ListRequestsRequest",
            "ListRequestTemplatesRequest",
            "ListQuotasRequest",
            "CancelRequestRequest",
            "ListLeasesRequest",
            "RenewLeaseRequest",
            "ReleaseLeaseRequest",
            "InviteClusterRequest",
            "ListPeeringsRequest",
            "GetPeeringRequest",
            "ApplyPolicyRequest",
            "PlanPolicyRequest",
            "AddLearner",
            "InviteUserRequest",
            "InviteBrokerRequest",
            "JoinUserRequest",
        ] {
            let messages = &messages;
            paths(messages, &format!("comity.v1.{message}"), "", &mut found);
        }
        assert!(found.iter().any(|path| path == "spec.gpus.share.mig_profile"), "{found:?}");
        for path in found.iter().filter(|path| !OURS.contains(&path.as_str())) {
            let typed = field_as_written(WrittenIn::Flags, path);
            assert!(typed.starts_with("--") || typed.starts_with('<'), "{path}: {typed}");
            let typed = field_as_written(WrittenIn::File, path);
            assert!(!typed.contains('_') && !typed.starts_with("spec"), "{path}: {typed}");
        }
    }
}
