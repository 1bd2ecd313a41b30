//! The order of the questions: what can never be granted first, then what is in use.

use super::agreements::find_agreement;
use super::{Allowance, BorrowFacts, Decision, Denial, DenyCode};
use crate::amounts::{show_duration, show_gpus};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, DocRef, Document, Quota, QuotaSubject, Tenant};

impl Bundle {
    /// Whether a tenant may borrow. Total: every input has an answer. A denial names the first reason and what would
    /// unblock it.
    #[must_use]
    pub fn may_borrow(&self, facts: &BorrowFacts<'_>) -> Decision {
        let mut because = Because(Some(Vec::with_capacity(8)));
        match decide(self, facts, &mut because) {
            Ok(agreement) => {
                let agreement = agreement.map(|agreement| agreement.name.clone());
                Decision::Allow(Allowance { agreement, because: because.0.unwrap_or_default() })
            }
            Err(denial) => Decision::Deny(*denial),
        }
    }

    /// The same answer for who asks often: without the documents behind a yes, the agreement alone; `None` within one
    /// institution.
    ///
    /// # Errors
    /// The denial.
    pub fn may_borrow_under(&self, facts: &BorrowFacts<'_>) -> Result<Option<&str>, Box<Denial>> {
        Ok(decide(self, facts, &mut Because(None))?.map(|agreement| agreement.name.as_str()))
    }
}

/// The documents behind a yes; `None`: nobody wants to know.
struct Because(Option<Vec<DocRef>>);

impl Because {
    fn push(&mut self, document: impl FnOnce() -> DocRef) {
        if let Some(documents) = &mut self.0 {
            documents.push(document());
        }
    }
}

/// Denials are boxed: the way through is the common one.
pub(super) type Checked<T> = Result<T, Box<Denial>>;

pub(super) fn deny<T>(code: DenyCode, message: String, unblock: impl Into<String>, by: Vec<DocRef>) -> Checked<T> {
    Err(Box::new(Denial { code, message, unblock: unblock.into(), by }))
}

fn decide<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    because: &mut Because,
) -> Checked<Option<&'b Document<Agreement>>> {
    if facts.gpus_milli == 0 || facts.duration_ms == 0 {
        let message = "a request needs GPUs and a duration above zero".to_owned();
        return deny(
            DenyCode::InvalidAmount,
            message,
            "ask for at least one milli-GPU and one millisecond",
            Vec::new(),
        );
    }
    let tenant = check_tenant(bundle, facts, because)?;
    check_federation_limits(bundle, facts)?;
    let donor = check_donor(bundle, facts, because)?;
    check_terms_exist(bundle, facts, tenant, donor)?;
    let agreement = find_agreement(bundle, facts, &tenant.spec.institution, &donor.spec.institution)?;
    if let Some(agreement) = agreement {
        because.push(|| agreement.at("classes"));
    }
    check_quotas(bundle, facts, tenant, because)?;
    check_what_is_lent(bundle, facts, tenant, donor, because)?;
    Ok(agreement)
}

fn check_tenant<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    because: &mut Because,
) -> Checked<&'b Document<Tenant>> {
    let Some(tenant) = bundle.tenants.get(facts.tenant) else {
        let message = format!("there is no tenant `{}`", facts.tenant);
        return deny(DenyCode::UnknownTenant, message, "a maintainer can add a Tenant document", Vec::new());
    };
    if bundle.institution_of_cluster(facts.origin_cluster).is_none() {
        let message = format!("no institution enrols the cluster `{}`", facts.origin_cluster);
        return deny(
            DenyCode::UnknownOrigin,
            message,
            "a maintainer can add it to `clusters` of its Institution",
            Vec::new(),
        );
    }
    if !tenant.spec.clusters.contains(facts.origin_cluster) {
        let message = format!("tenant `{}` may not send requests from `{}`", tenant.name, facts.origin_cluster);
        let by = tenant.at("clusters");
        return deny(
            DenyCode::OriginNotAllowed,
            message,
            format!("add `{}` to `clusters` of {by}", facts.origin_cluster),
            vec![by],
        );
    }
    if !bundle.classes.contains_key(facts.class) {
        let names: Vec<&str> = bundle.ranked.iter().take(12).map(String::as_str).collect();
        let message = format!("there is no GPU class `{}`", facts.class);
        return deny(DenyCode::UnknownClass, message, format!("ask for one of: {}", names.join(", ")), Vec::new());
    }
    if !tenant.spec.classes.contains(facts.class) {
        let message = format!("tenant `{}` may not ask for class `{}`", tenant.name, facts.class);
        let by = tenant.at("classes");
        return deny(
            DenyCode::ClassNotAllowed,
            message,
            format!("add `{}` to `classes` of {by}", facts.class),
            vec![by],
        );
    }
    because.push(|| tenant.at("classes"));
    Ok(tenant)
}

fn check_federation_limits(bundle: &Bundle, facts: &BorrowFacts<'_>) -> Checked<()> {
    let limits = &bundle.federation.spec.limits;
    let in_all = facts.gpus_milli.saturating_add(facts.beside_milli);
    if in_all > limits.max_gpus_per_request_milli {
        let by = bundle.federation.at("limits.maxGpusPerRequest");
        let most = show_gpus(limits.max_gpus_per_request_milli);
        let message = format!("the federation allows {most} GPUs in one request, not {}", show_gpus(in_all));
        return deny(
            DenyCode::RequestTooLarge,
            message,
            format!("ask for at most {most} GPUs, or raise the limit in {by}"),
            vec![by],
        );
    }
    if facts.duration_ms > limits.max_lease_duration_ms {
        let by = bundle.federation.at("limits.maxLeaseDuration");
        return too_long("the federation allows leases", facts.duration_ms, limits.max_lease_duration_ms, by);
    }
    Ok(())
}

fn too_long<T>(who: &str, asked_ms: u64, most_ms: u64, by: DocRef) -> Checked<T> {
    let most = show_duration(most_ms);
    let message = format!("{who} of at most {most}, not {}", show_duration(asked_ms));
    deny(DenyCode::LeaseTooLong, message, format!("ask for {most} and renew, or raise the limit in {by}"), vec![by])
}

fn check_donor<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    because: &mut Because,
) -> Checked<&'b Document<Cluster>> {
    if facts.donor_cluster == facts.origin_cluster {
        let message = format!("`{}` does not borrow from itself", facts.origin_cluster);
        return deny(DenyCode::SameCluster, message, "its own scheduler gives out its own GPUs", Vec::new());
    }
    let Some(donor) = bundle.clusters.get(facts.donor_cluster) else {
        let message = format!("`{}` has no terms to lend on", facts.donor_cluster);
        return deny(DenyCode::UnknownDonor, message, "its institution can add a Cluster document", Vec::new());
    };
    if !donor.spec.accepting {
        let by = donor.at("accepting");
        let message = format!("`{}` takes no new leases now", donor.name);
        return deny(
            DenyCode::DonorNotAccepting,
            message,
            format!("its institution can set `accepting: true` in {by}"),
            vec![by],
        );
    }
    if !donor.spec.delivery.contains(&facts.delivery) {
        let by = donor.at("delivery");
        let others: Vec<String> = donor.spec.delivery.iter().map(ToString::to_string).collect();
        let message = format!("the terms of `{}` do not allow delivery `{}`", donor.name, facts.delivery);
        let unblock = format!(
            "ask for delivery `{}`, or ask {} to add `{}` to `delivery` of {by}",
            others.join("` or `"),
            owner_of(bundle, donor),
            facts.delivery
        );
        return deny(DenyCode::NoDelivery, message, unblock, vec![by]);
    }
    if let Some(most) = donor.spec.max_lease_duration_ms
        && facts.duration_ms > most
    {
        let by = donor.at("maxLeaseDuration");
        return too_long(&format!("`{}` grants leases", donor.name), facts.duration_ms, most, by);
    }
    because.push(|| donor.at("accepting"));
    Ok(donor)
}

/// Whom to ask about a donor's terms.
fn owner_of<'b>(bundle: &'b Bundle, donor: &Document<Cluster>) -> &'b str {
    bundle.institutions.get(&donor.spec.institution).map_or("its institution", |owner| owner.spec.contact.as_str())
}

/// Some term of the donor covers the class and the borrower.
fn check_terms_exist(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    tenant: &Document<Tenant>,
    donor: &Document<Cluster>,
) -> Checked<()> {
    let mut lent_to_others = None;
    for (index, term) in donor.spec.lends.iter().enumerate().filter(|(_, term)| term.classes.contains(facts.class)) {
        if term.covers(&tenant.name, &tenant.spec.institution) {
            return Ok(());
        }
        lent_to_others.get_or_insert(index);
    }
    let owner = owner_of(bundle, donor);
    match lent_to_others {
        Some(index) => {
            let by = donor.at(&format!("lends[{index}]"));
            let message = format!(
                "`{}` lends `{}`, but not to tenant `{}` of `{}`",
                donor.name, facts.class, tenant.name, tenant.spec.institution
            );
            deny(DenyCode::BorrowerNotServed, message, format!("ask {owner} to add it to `to` of {by}"), vec![by])
        }
        None => {
            let by = donor.at("lends");
            let message = format!("`{}` does not lend class `{}`", donor.name, facts.class);
            deny(DenyCode::ClassNotLent, message, format!("ask {owner} to add it to {by}"), vec![by])
        }
    }
}

fn check_quotas(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    tenant: &Document<Tenant>,
    because: &mut Because,
) -> Checked<()> {
    let names = bundle.quotas_of.get(&tenant.name).map_or(&[][..], Vec::as_slice);
    let quotas = names.iter().filter_map(|name| bundle.quotas.get(name));
    for quota in quotas.filter(|quota| quota.spec.class.as_deref().is_none_or(|class| class == facts.class)) {
        check_quota(facts, quota)?;
        because.push(|| quota.at("maxConcurrentGpus"));
    }
    Ok(())
}

fn check_quota(facts: &BorrowFacts<'_>, quota: &Document<Quota>) -> Checked<()> {
    let name = &quota.name;
    let in_all = facts.gpus_milli.saturating_add(facts.beside_milli);
    if let Some(most) = quota.spec.max_gpus_per_request_milli
        && in_all > most
    {
        let by = quota.at("maxGpusPerRequest");
        let (most, asked) = (show_gpus(most), show_gpus(in_all));
        let message = format!("quota `{name}` allows {most} GPUs in one request, not {asked}");
        return deny(
            DenyCode::RequestTooLarge,
            message,
            format!("ask for at most {most} GPUs, or raise the limit in {by}"),
            vec![by],
        );
    }
    if let Some(most) = quota.spec.max_lease_duration_ms
        && facts.duration_ms > most
    {
        return too_long(
            &format!("quota `{name}` allows leases"),
            facts.duration_ms,
            most,
            quota.at("maxLeaseDuration"),
        );
    }
    let Some(most) = quota.spec.max_concurrent_gpus_milli else {
        return Ok(());
    };
    let (used, whose) = match (&quota.spec.subject, &quota.spec.class) {
        (QuotaSubject::Tenant(tenant), None) => (facts.in_use.tenant_milli, format!("tenant `{tenant}`")),
        (QuotaSubject::Tenant(tenant), Some(class)) => {
            (facts.in_use.tenant_class_milli, format!("tenant `{tenant}` of class `{class}`"))
        }
        (QuotaSubject::Institution(of), None) => (facts.in_use.institution_milli, format!("institution `{of}`")),
        (QuotaSubject::Institution(of), Some(class)) => {
            (facts.in_use.institution_class_milli, format!("institution `{of}` of class `{class}`"))
        }
    };
    let what = format!("quota `{name}` for {whose}");
    exhausted(DenyCode::QuotaExhausted, &what, facts.gpus_milli, used, most, quota.at("maxConcurrentGpus"))
}

/// Denies if `asked` does not fit beside `used` under `most`.
pub(super) fn exhausted(code: DenyCode, what: &str, asked: u64, used: u64, most: u64, by: DocRef) -> Checked<()> {
    if used.saturating_add(asked) <= most {
        return Ok(());
    }
    let message = format!(
        "{what} allows {} GPUs at one time; {} are in use and {} more are asked for",
        show_gpus(most),
        show_gpus(used),
        show_gpus(asked)
    );
    let unblock = if asked > most {
        format!("ask for at most {} GPUs, or raise the limit in {by}", show_gpus(most))
    } else {
        let excess = used.saturating_add(asked) - most;
        format!("wait until {} of them are free, or raise the limit in {by}", show_gpus(excess))
    };
    deny(code, message, unblock, vec![by])
}

/// The donor's own limits: one term must have room, and so must the cluster.
fn check_what_is_lent(
    bundle: &Bundle,
    facts: &BorrowFacts<'_>,
    tenant: &Document<Tenant>,
    donor: &Document<Cluster>,
    because: &mut Because,
) -> Checked<()> {
    let institution_of =
        |tenant: &str| bundle.tenants.get(tenant).map_or("", |tenant| tenant.spec.institution.as_str());
    let (mut covering, mut exhausted_term) = (None, None);
    for (index, term) in donor.spec.lends.iter().enumerate() {
        if !term.classes.contains(facts.class) || !term.covers(&tenant.name, &tenant.spec.institution) {
            continue;
        }
        let room = match term.max_gpus_milli {
            None => Ok(()),
            Some(most) => {
                let used = facts.in_use.lent_by_donor_where(|borrower, class| {
                    term.classes.contains(class) && term.covers(borrower, institution_of(borrower))
                });
                let by = donor.at(&format!("lends[{index}].maxGpus"));
                exhausted(
                    DenyCode::DonorExhausted,
                    &format!("`{}`, by this term,", donor.name),
                    facts.gpus_milli,
                    used,
                    most,
                    by,
                )
            }
        };
        match room {
            Ok(()) => {
                covering = Some(index);
                break;
            }
            Err(denial) => exhausted_term = exhausted_term.or(Some(denial)),
        }
    }
    // That a term covers the request was checked before; without one, nothing is lent.
    match (covering, exhausted_term) {
        (Some(index), _) => because.push(|| donor.at(&format!("lends[{index}]"))),
        (None, Some(denial)) => return Err(denial),
        (None, None) => {}
    }
    if let Some(most) = donor.spec.max_lent_gpus_milli {
        let used = facts.in_use.lent_by_donor_milli();
        exhausted(
            DenyCode::DonorExhausted,
            &format!("`{}`", donor.name),
            facts.gpus_milli,
            used,
            most,
            donor.at("maxLentGpus"),
        )?;
    }
    Ok(())
}
