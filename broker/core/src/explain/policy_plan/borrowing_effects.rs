//! Classes that a bundle would let tenants borrow, or no longer: what requests that nobody has submitted yet may ask for.

use std::collections::BTreeSet;

use comity_policy::{BorrowFacts, Bundle, Denial, Document, InUse, Tenant};

use super::{Effects, Planned};

/// Most combinations of a tenant, a donor and a class that are examined, of tenants by name.
const MAX_COMBINATIONS_EXAMINED: usize = 100_000;

/// Classes that a tenant could borrow from a donor, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BorrowingEffect {
    /// The tenant.
    pub tenant: String,
    /// The donor.
    pub donor: String,
    /// The classes.
    pub classes: Vec<String>,
    /// Why it could no longer borrow the first of them; `None` if it could now.
    pub denied: Option<String>,
}

/// The changes of what tenants may borrow, by tenant and donor. Permissions count at any time of the week, and limits on
/// what is in use do not.
pub(super) fn borrowing_effects(before: &Planned<'_>, after: &Planned<'_>) -> Effects<BorrowingEffect> {
    let bundles = [before.unsplit.as_ref(), after.unsplit.as_ref()];
    let all = |names: fn(&Bundle) -> Vec<&String>| -> BTreeSet<&String> {
        bundles.into_iter().flatten().flat_map(names).collect()
    };
    let donors = all(|bundle| bundle.clusters.keys().collect());
    let now_ms = after.state.log_time.0;
    let (mut left, mut unexamined, mut found) = (MAX_COMBINATIONS_EXAMINED, 0, Vec::new());
    for tenant in all(|bundle| bundle.tenants.keys().collect()) {
        let documents = bundles.map(|bundle| bundle.and_then(|bundle| bundle.tenants.get(tenant)));
        let classes: BTreeSet<&String> = documents.into_iter().flatten().flat_map(|it| &it.spec.classes).collect();
        let Some(rest) = left.checked_sub(classes.len().saturating_mul(donors.len())) else {
            unexamined += 1;
            continue;
        };
        left = rest;
        for donor in &donors {
            let (mut gained, mut lost, mut denied) = (Vec::new(), Vec::new(), None);
            for class in &classes {
                let answers = [0, 1].map(|at: usize| obstacle_to(bundles[at], documents[at], donor, class, now_ms));
                match answers {
                    [Some(_), None] => gained.push((*class).clone()),
                    [None, Some(reason)] => {
                        lost.push((*class).clone());
                        denied = denied.or(Some(reason));
                    }
                    [None, None] | [Some(_), Some(_)] => {}
                }
            }
            for (classes, denied) in [(gained, None), (lost, denied)] {
                if !classes.is_empty() {
                    let (tenant, donor) = (tenant.clone(), (*donor).clone());
                    found.push(BorrowingEffect { tenant, donor, classes, denied });
                }
            }
        }
    }
    Effects { unexamined, ..found.into_iter().collect() }
}

/// Why policy keeps a tenant from borrowing a class from a donor, from whatever origin and in whatever amount; `None` if
/// it does not.
fn obstacle_to(
    bundle: Option<&Bundle>,
    tenant: Option<&Document<Tenant>>,
    donor: &str,
    class: &str,
    now_ms: u64,
) -> Option<String> {
    let Some(bundle) = bundle else { return Some("no policy bundle is in force".to_owned()) };
    let Some(tenant) = tenant else { return Some("there is no such tenant".to_owned()) };
    let origins = tenant.spec.clusters.iter().filter(|origin| *origin != donor);
    let mut denials = origins.map(|origin| denial(bundle, &tenant.name, origin, donor, class, now_ms));
    let first = denials.next().unwrap_or_else(|| Some(format!("it has no other cluster than {donor} to send from")))?;
    if denials.any(|denial| denial.is_none()) { None } else { Some(first) }
}

/// The denial of the smallest request; one that passes with time does not count.
fn denial(bundle: &Bundle, tenant: &str, origin: &str, donor: &str, class: &str, now_ms: u64) -> Option<String> {
    let deliveries = bundle.clusters.get(donor).map(|donor| &donor.spec.delivery);
    let answer = bundle.may_borrow_under(&BorrowFacts {
        tenant,
        user: "",
        origin_cluster: origin,
        donor_cluster: donor,
        class,
        gpus_milli: 1,
        beside_milli: 0,
        delivery: deliveries.and_then(|deliveries| deliveries.first().copied()).unwrap_or_default(),
        duration_ms: 1,
        notice_ms: None,
        now_ms,
        data: &[],
        purpose: "",
        in_use: InUse::default(),
    });
    let lasts = |denial: &Denial| !denial.code.may_pass();
    answer.err().filter(|denial| lasts(denial)).map(|denial| denial.message)
}
