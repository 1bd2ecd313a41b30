//! Amounts of CPU and memory in an inventory file, written as Kubernetes does.

use comity_policy::quantity;
use serde_saphyr::Spanned;

use super::mistakes::Problem;
use crate::observe::MIB;

pub(super) fn cpu_milli(given: &Spanned<String>) -> Result<u64, Problem> {
    amount("cpu", given, quantity::milli_floor)
}

pub(super) fn memory_mib(given: &Spanned<String>) -> Result<u64, Problem> {
    amount("memory", given, quantity::ones_floor).map(|bytes| bytes / MIB)
}

fn amount(field: &str, given: &Spanned<String>, read: impl Fn(&str) -> Option<u64>) -> Result<u64, Problem> {
    read(&given.value).ok_or_else(|| {
        Problem(
            given.referenced,
            format!(
                "{field} {:?} is not an amount; write it as Kubernetes does, as in \"64\", \"500m\" or 512Gi",
                given.value
            ),
        )
    })
}
