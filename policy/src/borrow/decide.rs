//! Decides whether a tenant may borrow: first permissions and sizes, then limits on the GPUs in use.

use super::citations::Citations;
use super::cohort_standing::CohortStanding;
use super::datasets::{check_datasets, cite_agreement};
use super::denials::{CheckResult, Headroom, deny, deny_duration, deny_request_size};
use super::find_agreement::find_agreement;
use super::gpu_time::check_gpu_time;
use super::rules::check_rules;
use super::schedules::check_when;
use super::{Allowance, BorrowFacts, Decision, Denial, DenyCode, milli_of};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, Document, LendTerm, Quota, Tenant};

impl Bundle {
    /// Whether a tenant may borrow. Every input has an answer. A denial names the first reason and a remedy.
    #[must_use]
    pub fn may_borrow(&self, facts: &BorrowFacts<'_>) -> Decision {
        let mut citations = Citations::Collected(Vec::with_capacity(8));
        match decide(self, facts, &mut citations) {
            Ok(agreement) => {
                let agreement = agreement.map(|agreement| agreement.name.clone());
                Decision::Allow(Allowance { agreement, because: citations.into_documents() })
            }
            Err(denial) => Decision::Deny(*denial),
        }
    }

    /// Like [`may_borrow`](Self::may_borrow), but cheaper: an allowance is only the name of the agreement, `None`
    /// within one institution.
    ///
    /// # Errors
    /// The denial.
    pub fn may_borrow_under(&self, facts: &BorrowFacts<'_>) -> Result<Option<&str>, Box<Denial>> {
        Ok(decide(self, facts, &mut Citations::Skipped)?.map(|agreement| agreement.name.as_str()))
    }
}

fn decide<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    citations: &mut Citations,
) -> CheckResult<Option<&'b Document<Agreement>>> {
    if facts.gpus_milli == 0 || facts.duration_ms == 0 {
        let message = "a request needs GPUs and a duration above zero".to_owned();
        return deny(
            DenyCode::InvalidAmount,
            message,
            "ask for at least one milli-GPU and one millisecond",
            Vec::new(),
        );
    }
    let tenant = check_tenant(bundle, facts, citations)?;
    check_federation_limits(bundle, facts)?;
    let donor = check_donor(bundle, facts, citations)?;
    check_terms_cover(bundle, facts, &tenant.spec.institution, donor)?;
    check_datasets(bundle, facts, donor, citations)?;
    let agreement = find_agreement(bundle, facts, &tenant.spec.institution, &donor.spec.institution)?;
    if let Some(agreement) = agreement {
        citations.push(|| agreement.cite("classes"));
        cite_agreement(bundle, facts, agreement, citations);
    }
    check_rules(bundle, facts, (tenant, donor, agreement), citations)?;
    check_quotas(bundle, facts, tenant, citations)?;
    check_donor_limits(bundle, facts, tenant, donor, citations)?;
    Ok(agreement)
}

fn check_tenant<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    citations: &mut Citations,
) -> CheckResult<&'b Document<Tenant>> {
    let tenant = find_tenant(bundle, facts)?;
    check_origin_is_known(bundle, facts)?;
    check_origin(facts, tenant)?;
    check_class_is_known(bundle, facts)?;
    check_class(facts, tenant)?;
    citations.push(|| tenant.cite("classes"));
    check_class_is_in_force(bundle, facts)?;
    Ok(tenant)
}

pub(super) fn find_tenant<'b>(bundle: &'b Bundle, facts: &BorrowFacts<'_>) -> CheckResult<&'b Document<Tenant>> {
    if let Some(tenant) = bundle.tenants.get(facts.tenant) {
        return Ok(tenant);
    }
    let message = format!("there is no tenant `{}`", facts.tenant);
    deny(DenyCode::UnknownTenant, message, "a maintainer can add a Tenant document", Vec::new())
}

pub(super) fn check_origin_is_known(bundle: &Bundle, facts: &BorrowFacts<'_>) -> CheckResult<()> {
    if bundle.institution_of_cluster(facts.origin_cluster).is_some() {
        return Ok(());
    }
    let message = format!("no institution enrols the cluster `{}`", facts.origin_cluster);
    let unblock = "a maintainer can add it to `clusters` of its Institution";
    deny(DenyCode::UnknownOrigin, message, unblock, Vec::new())
}

pub(super) fn check_origin(facts: &BorrowFacts<'_>, tenant: &Document<Tenant>) -> CheckResult<()> {
    if tenant.spec.clusters.contains(facts.origin_cluster) {
        return Ok(());
    }
    let message = format!("tenant `{}` may not send requests from `{}`", tenant.name, facts.origin_cluster);
    let by = tenant.cite("clusters");
    let unblock = format!("add `{}` to `clusters` of {by}", facts.origin_cluster);
    deny(DenyCode::OriginNotAllowed, message, unblock, vec![by])
}

pub(super) fn check_class_is_known(bundle: &Bundle, facts: &BorrowFacts<'_>) -> CheckResult<()> {
    if bundle.classes.contains_key(facts.class) {
        return Ok(());
    }
    let names: Vec<&str> = bundle.classes_by_rank.iter().take(12).map(String::as_str).collect();
    let message = format!("there is no GPU class `{}`", facts.class);
    deny(DenyCode::UnknownClass, message, format!("ask for one of: {}", names.join(", ")), Vec::new())
}

pub(super) fn check_class(facts: &BorrowFacts<'_>, tenant: &Document<Tenant>) -> CheckResult<()> {
    if tenant.spec.classes.contains(facts.class) {
        return Ok(());
    }
    let message = format!("tenant `{}` may not ask for class `{}`", tenant.name, facts.class);
    let by = tenant.cite("classes");
    deny(DenyCode::ClassNotAllowed, message, format!("add `{}` to `classes` of {by}", facts.class), vec![by])
}

pub(super) fn check_class_is_in_force(bundle: &Bundle, facts: &BorrowFacts<'_>) -> CheckResult<()> {
    let Some(class) = bundle.classes.get(facts.class) else { return Ok(()) };
    let Some(when) = &class.spec.when else { return Ok(()) };
    check_when(bundle, facts, when, || format!("class `{}`", class.name), |field| class.cite(field))
}

fn check_federation_limits(bundle: &Bundle, facts: &BorrowFacts<'_>) -> CheckResult<()> {
    let federation = &bundle.federation;
    let limits = &federation.spec.limits;
    if facts.request_milli() > limits.max_gpus_per_request_milli {
        let by = federation.cite("limits.maxGpusPerRequest");
        return deny_request_size(facts, "the federation", limits.max_gpus_per_request_milli, by);
    }
    if facts.duration_ms > limits.max_lease_duration_ms {
        let by = federation.cite("limits.maxLeaseDuration");
        return deny_duration(facts, "the federation allows leases", limits.max_lease_duration_ms, by);
    }
    Ok(())
}

fn check_donor<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    citations: &mut Citations,
) -> CheckResult<&'b Document<Cluster>> {
    if facts.donor_cluster == facts.origin_cluster {
        let message = format!("`{}` does not borrow from itself", facts.origin_cluster);
        return deny(DenyCode::SameCluster, message, "its own scheduler assigns its GPUs", Vec::new());
    }
    let donor = find_donor(bundle, facts)?;
    if !donor.spec.accepting {
        let by = donor.cite("accepting");
        let message = format!("`{}` accepts no new leases now", donor.name);
        return deny(
            DenyCode::DonorNotAccepting,
            message,
            format!("its institution can set `accepting: true` in {by}"),
            vec![by],
        );
    }
    if !donor.spec.delivery.contains(&facts.delivery) {
        let by = donor.cite("delivery");
        let others: Vec<String> = donor.spec.delivery.iter().map(ToString::to_string).collect();
        let message = format!("the terms of `{}` do not allow delivery `{}`", donor.name, facts.delivery);
        let unblock = format!(
            "ask for delivery `{}`, or ask {} to add `{}` to `delivery` of {by}",
            others.join("` or `"),
            contact_of(bundle, donor),
            facts.delivery
        );
        return deny(DenyCode::NoDelivery, message, unblock, vec![by]);
    }
    if let Some(max_ms) = donor.spec.max_lease_duration_ms
        && facts.duration_ms > max_ms
    {
        let by = donor.cite("maxLeaseDuration");
        return deny_duration(facts, &format!("`{}` grants leases", donor.name), max_ms, by);
    }
    citations.push(|| donor.cite("accepting"));
    Ok(donor)
}

pub(super) fn find_donor<'b>(bundle: &'b Bundle, facts: &BorrowFacts<'_>) -> CheckResult<&'b Document<Cluster>> {
    if let Some(donor) = bundle.clusters.get(facts.donor_cluster) {
        return Ok(donor);
    }
    let message = format!("`{}` has no lending terms", facts.donor_cluster);
    deny(DenyCode::UnknownDonor, message, "its institution can add a Cluster document", Vec::new())
}

/// The contact of a donor's institution.
fn contact_of<'b>(bundle: &'b Bundle, donor: &Document<Cluster>) -> &'b str {
    bundle.institutions.get(&donor.spec.institution).map_or("its institution", |owner| owner.spec.contact.as_str())
}

/// Denies if no lending term of the donor covers both the class and the tenant of an institution.
pub(super) fn check_terms_cover(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    institution: &str,
    donor: &Document<Cluster>,
) -> CheckResult<()> {
    let mut lent_to_others = None;
    let mut at_other_times: Option<Box<Denial>> = None;
    for (index, term) in donor.spec.lends.iter().enumerate().filter(|(_, term)| term.classes.contains(facts.class)) {
        if !term.covers(facts.tenant, institution) {
            lent_to_others.get_or_insert(index);
            continue;
        }
        match check_term_is_in_force(bundle, facts, donor, index, term) {
            Ok(()) => return Ok(()),
            // A term that ends too soon says more than one that has not begun.
            Err(denial) if at_other_times.is_none() || denial.code == DenyCode::ScheduleEndsTooSoon => {
                at_other_times = Some(denial);
            }
            Err(_) => {}
        }
    }
    if let Some(denial) = at_other_times {
        return Err(denial);
    }
    let contact = contact_of(bundle, donor);
    match lent_to_others {
        Some(index) => {
            let by = donor.cite(&format!("lends[{index}]"));
            let message = format!(
                "`{}` lends `{}`, but not to tenant `{}` of `{institution}`",
                donor.name, facts.class, facts.tenant
            );
            deny(DenyCode::BorrowerNotServed, message, format!("ask {contact} to add it to `to` of {by}"), vec![by])
        }
        None => {
            let by = donor.cite("lends");
            let message = format!("`{}` does not lend class `{}`", donor.name, facts.class);
            deny(DenyCode::ClassNotLent, message, format!("ask {contact} to add it to {by}"), vec![by])
        }
    }
}

fn check_term_is_in_force(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    donor: &Document<Cluster>,
    index: usize,
    term: &LendTerm,
) -> CheckResult<()> {
    let Some(when) = &term.when else { return Ok(()) };
    let subject = || format!("the term of `{}` for `{}`", donor.name, facts.class);
    check_when(bundle, facts, when, subject, |field| donor.cite(&format!("lends[{index}].{field}")))
}

fn check_quotas(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    tenant: &Document<Tenant>,
    citations: &mut Citations,
) -> CheckResult<()> {
    let quotas = bundle.quotas_of(&tenant.name).filter(|quota| quota.spec.covers_class(facts.class));
    let is_in_force = |quota: &&Document<Quota>| {
        let phase = quota.spec.when.as_ref().and_then(|when| bundle.phase_of(when, facts.now_ms));
        phase.is_none_or(|phase| phase.is_open)
    };
    for quota in quotas.filter(is_in_force) {
        check_quota(facts, quota)?;
        let borrows = check_concurrent_of_all(bundle, facts, quota)?;
        if !facts.user.is_empty() {
            check_concurrent(facts, quota, true)?;
        }
        check_gpu_hours(bundle, facts, quota)?;
        citations.push(|| quota.cite(quota.spec.first_limit()));
        if borrows {
            citations.push(|| quota.cite("cohort"));
        }
    }
    Ok(())
}

fn check_gpu_hours(bundle: &Bundle, facts: &BorrowFacts<'_>, quota: &Document<Quota>) -> CheckResult<()> {
    let known = facts.in_use.gpu_time;
    check_gpu_time(bundle, quota, known.map(|known| known.booked), &facts.booking())
}

fn check_quota(facts: &BorrowFacts<'_>, quota: &Document<Quota>) -> CheckResult<()> {
    let name = &quota.name;
    if let Some(max_milli) = quota.spec.max_gpus_per_request_milli
        && facts.request_milli() > max_milli
    {
        return deny_request_size(facts, &format!("quota `{name}`"), max_milli, quota.cite("maxGpusPerRequest"));
    }
    if let Some(max_ms) = quota.spec.max_lease_duration_ms
        && facts.duration_ms > max_ms
    {
        let limit = format!("quota `{name}` allows leases");
        return deny_duration(facts, &limit, max_ms, quota.cite("maxLeaseDuration"));
    }
    Ok(())
}

/// Checks the GPUs of the subject at a time. Returns whether the lease borrows of the quota's cohort.
fn check_concurrent_of_all(bundle: &Bundle, facts: &BorrowFacts<'_>, quota: &Document<Quota>) -> CheckResult<bool> {
    match CohortStanding::of(bundle, facts, quota) {
        Some(standing) => standing.check(facts, quota),
        None => check_concurrent(facts, quota, false).map(|()| false),
    }
}

/// Checks the GPUs borrowed at a time: of the subject, or of the user alone.
fn check_concurrent(facts: &BorrowFacts<'_>, quota: &Document<Quota>, per_user: bool) -> CheckResult<()> {
    let spec = &quota.spec;
    let Some((max_milli, field)) = spec.max_concurrent_of(per_user) else { return Ok(()) };
    let used_milli = milli_of(facts.in_use.of_quota(&spec.subject, per_user), |class| spec.covers_class(class));
    let headroom = Headroom { max_milli, used_milli, requested_milli: facts.gpus_milli };
    if headroom.fits() {
        return Ok(());
    }
    headroom.deny(DenyCode::QuotaExhausted, &spec.shown(&quota.name, per_user), quota.cite(field))
}

/// Checks the donor's own limits: one lending term and the cluster need headroom.
fn check_donor_limits(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    tenant: &Document<Tenant>,
    donor: &Document<Cluster>,
    citations: &mut Citations,
) -> CheckResult<()> {
    let institution_of =
        |tenant: &str| bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
    let headroom_of = |term: &LendTerm| {
        let max_milli = term.max_gpus_milli?;
        let covers = |borrower: &str| term.covers(borrower, institution_of(borrower));
        let only = (!term.is_open()).then_some(covers);
        let used_milli = facts.in_use.lent_by_donor_of(|class| term.classes.contains(class), only);
        Some(Headroom { max_milli, used_milli, requested_milli: facts.gpus_milli })
    };
    let mut exhausted: Option<(usize, Headroom)> = None;
    let mut term_with_headroom = None;
    for (index, term) in donor.spec.lends.iter().enumerate() {
        if !term.classes.contains(facts.class)
            || !term.covers(&tenant.name, &tenant.spec.institution)
            || check_term_is_in_force(bundle, facts, donor, index, term).is_err()
        {
            continue;
        }
        match headroom_of(term) {
            Some(headroom) if !headroom.fits() => {
                // A term that is in use now says more than one that is too small.
                if exhausted.is_none_or(|(_, first)| first.never_fits() && !headroom.never_fits()) {
                    exhausted = Some((index, headroom));
                }
            }
            _ => {
                term_with_headroom = Some(index);
                break;
            }
        }
    }
    // `check_terms_cover` found a term, so one of the two is set.
    match (term_with_headroom, exhausted) {
        (Some(index), _) => citations.push(|| donor.cite(&format!("lends[{index}]"))),
        (None, Some((index, headroom))) => {
            let by = donor.cite(&format!("lends[{index}].maxGpus"));
            return headroom.deny(DenyCode::DonorExhausted, &format!("a lending term of `{}`", donor.name), by);
        }
        (None, None) => {}
    }
    if let Some(max_milli) = donor.spec.max_lent_gpus_milli {
        let used_milli = facts.in_use.lent_by_donor_milli();
        let headroom = Headroom { max_milli, used_milli, requested_milli: facts.gpus_milli };
        if !headroom.fits() {
            let by = donor.cite("maxLentGpus");
            return headroom.deny(DenyCode::DonorExhausted, &format!("`{}`", donor.name), by);
        }
    }
    Ok(())
}
