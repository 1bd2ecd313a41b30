//! Rewrites the wire fields in a broker's refusal as flags and their units, for people. Scripts (`-o json`) get the
//! broker's text unchanged.

use crate::units::{format_duration, format_time};

/// Each field and its flag. A field must precede every field whose name is its prefix.
const FLAGS: &[(&str, &str)] = &[
    ("spec.preemptible.checkpoint", "--checkpoint"),
    ("spec.preemptible.grace_ms", "--grace"),
    ("spec.gpus.share.mig_profile", "--mig"),
    ("spec.gpus.share.memory_mib", "--gpu-memory"),
    ("spec.gpus.share.milli", "--gpus"),
    ("spec.gpus.cpu_milli_per_gpu", "--cpu-per-gpu"),
    ("spec.gpus.memory_mib_per_gpu", "--memory-per-gpu"),
    ("spec.gpus.selector", "--selector"),
    ("spec.gpus.class", "--class"),
    ("spec.gpus.count", "--gpus"),
    ("spec.topology.same_node", "--same-node"),
    ("spec.topology.whole_node", "--whole-node"),
    ("spec.topology.rdma_gbits", "--rdma-gbits"),
    ("spec.topology.spread_nodes", "--spread-nodes"),
    ("spec.topology.nvlink", "--nvlink"),
    ("spec.topology.numa", "--numa"),
    ("spec.members.desired", "--members"),
    ("spec.members.min", "--members"),
    ("spec.members", "--members"),
    ("spec.spread_donors", "--spread-donors"),
    ("spec.data", "--data"),
    ("spec.target_namespace", "--namespace"),
    ("spec.not_before_ms", "--start-after"),
    ("spec.start_by_ms", "--start-by"),
    ("spec.duration_ms", "--duration"),
    ("duration_ms", "--duration"),
    ("may_shorten", "--shorten"),
    ("spec.allow_donors", "--donor"),
    ("spec.deny_donors", "--not-donor"),
    ("spec.delivery", "--delivery"),
    ("spec.priority", "--priority"),
    ("spec.purpose", "--purpose"),
    ("spec.tenant", "--tenant"),
    ("spec.origin", "--origin"),
    ("set queue_anyway", "add --queue-anyway"),
];
/// Start of the year 2000: smaller numbers are not taken for times.
const FIRST_TIME_MS: u64 = 946_684_800_000;

/// Rewrites `text`, part of a refusal about `field`, with flags in place of fields and the flag's units.
pub(crate) fn with_flags(field: &str, text: &str) -> String {
    let mut text = in_units(field, text);
    for (wire, flag) in FLAGS {
        text = text.replace(wire, flag);
    }
    text
}

/// Rewrites each number in the unit that the field's flag takes.
fn in_units(field: &str, text: &str) -> String {
    match field {
        "spec.duration_ms" | "duration_ms" | "spec.preemptible.grace_ms" => {
            map_numbers(text, |ms| if ms < 1_000 { ms.to_string() } else { format_duration(ms) })
        }
        "spec.not_before_ms" | "spec.start_by_ms" => {
            map_numbers(&text.replace("in milliseconds since 1970 ", ""), |ms| {
                moment(ms).unwrap_or_else(|| ms.to_string())
            })
        }
        "spec.gpus.share.memory_mib" | "spec.gpus.memory_mib_per_gpu" => map_numbers(text, |mib| format!("{mib}Mi")),
        "spec.gpus.cpu_milli_per_gpu" => map_numbers(text, |milli| format!("{milli}m")),
        _ => text.to_owned(),
    }
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
                "--spread-donors \"true\" is asked for without --members",
            ),
            (
                "may_shorten",
                "renew it with a longer duration_ms, or set may_shorten to let it end earlier",
                "renew it with a longer --duration, or set --shorten to let it end earlier",
            ),
            ("lease", "no lease \"lease-99\"", "no lease \"lease-99\""),
        ] {
            assert_eq!(with_flags(field, text), expected);
        }
    }
}
