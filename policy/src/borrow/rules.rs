//! Evaluates rules.

use cel::Context;
use cel::common::value::Val;
use comity_types::{Delivery, LeaseTreatment};

use super::citations::Citations;
use super::denials::{CheckResult, deny};
use super::{BorrowFacts, Denial, DenyCode};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, Document, GpuClass, Institution, Rule, RuleEffect, Tenant};
use crate::expression::{QuantityValue, RecordValue, context, number, text};

/// A request, and a donor that could serve it.
#[derive(Clone, Copy, Debug)]
pub struct PreferenceFacts<'f> {
    /// The borrowing tenant.
    pub tenant: &'f str,
    /// The cluster of the request.
    pub origin_cluster: &'f str,
    /// The cluster that would lend.
    pub donor_cluster: &'f str,
    /// The class that the request names; `None` if it has a selector.
    pub class: Option<&'f str>,
    /// The least GPUs of the request, in milli-GPU.
    pub gpus_milli: u64,
    /// Delivery of its leases.
    pub delivery: Delivery,
    /// Duration of its leases, in milliseconds.
    pub duration_ms: u64,
}

/// What rules see of a lease. Unknown texts are empty, unknown numbers 0.
#[derive(Debug)]
struct RuleFacts<'f> {
    origin: &'f str,
    request_milli: u64,
    duration_ms: u64,
    delivery: Delivery,
    tenant: &'f Document<Tenant>,
    institution: Option<&'f Document<Institution>>,
    donor: &'f Document<Cluster>,
    class: Option<&'f Document<GpuClass>>,
    /// Agreement and milli-GPU of the lease; empty for preferences.
    lease: (&'f str, u64),
}

impl Bundle {
    /// The warnings of rules about a lease that [`may_borrow`](Self::may_borrow) allows.
    #[must_use]
    pub fn rule_warnings(&self, facts: &BorrowFacts<'_>, agreement: Option<&str>) -> Vec<String> {
        let (Some(tenant), Some(donor)) = (self.tenants.get(facts.tenant), self.clusters.get(facts.donor_cluster))
        else {
            return Vec::new();
        };
        let agreement = agreement.and_then(|name| self.agreements.get(name));
        let mut warnings = self.rules_that(|effect| effect == RuleEffect::Warn).peekable();
        if warnings.peek().is_none() {
            return Vec::new();
        }
        let rule_facts = RuleFacts::of(self, facts, (tenant, donor, agreement));
        let context = rule_facts.context();
        // A warning that cannot be evaluated is shown rather than lost.
        let shown = warnings.filter(|rule| rule.spec.condition.holds(&context).unwrap_or(true));
        shown.map(|rule| format!("{} ({})", rule.spec.message, rule.cite("warn"))).collect()
    }

    /// The sum of the weights of the rules that prefer this donor for this request.
    #[must_use]
    pub fn preference(&self, facts: &PreferenceFacts<'_>) -> u32 {
        let mut rules = self.rules_that(|effect| matches!(effect, RuleEffect::Prefer { .. })).peekable();
        if rules.peek().is_none() {
            return 0;
        }
        let (Some(tenant), Some(donor)) = (self.tenants.get(facts.tenant), self.clusters.get(facts.donor_cluster))
        else {
            return 0;
        };
        let rule_facts = RuleFacts {
            origin: facts.origin_cluster,
            request_milli: facts.gpus_milli,
            duration_ms: facts.duration_ms,
            delivery: facts.delivery,
            tenant,
            institution: self.institutions.get(&tenant.spec.institution),
            donor,
            class: facts.class.and_then(|class| self.classes.get(class)),
            lease: ("", 0),
        };
        let context = rule_facts.context();
        let weights = rules.map(|rule| match (rule.spec.effect, rule.spec.condition.holds(&context)) {
            (RuleEffect::Prefer { weight }, Ok(true)) => weight,
            _ => 0,
        });
        weights.fold(0, u32::saturating_add)
    }

    /// Whether any rule warns.
    #[must_use]
    pub fn has_warnings(&self) -> bool {
        self.rules_that(|effect| effect == RuleEffect::Warn).next().is_some()
    }

    fn denying_rules(&self) -> impl Iterator<Item = &Document<Rule>> {
        self.rules_that(|effect| matches!(effect, RuleEffect::Deny | RuleEffect::Require))
    }

    fn rules_that(&self, matches: impl Fn(RuleEffect) -> bool) -> impl Iterator<Item = &Document<Rule>> {
        self.rules.values().filter(move |rule| matches(rule.spec.effect))
    }
}

/// Denies if a rule does. A condition that cannot be evaluated denies, too.
pub(super) fn check_rules<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    (tenant, donor, agreement): (&'b Document<Tenant>, &'b Document<Cluster>, Option<&'b Document<Agreement>>),
    citations: &mut Citations,
) -> CheckResult<()> {
    let mut rules = bundle.denying_rules().peekable();
    if rules.peek().is_none() {
        return Ok(());
    }
    let rule_facts = RuleFacts::of(bundle, facts, (tenant, donor, agreement));
    let context = rule_facts.context();
    for rule in rules {
        check_rule(rule, &context)?;
        if rule.spec.effect == RuleEffect::Require {
            citations.push(|| rule.cite("require"));
        }
    }
    Ok(())
}

/// The tightest treatment that a rule demands which denies a lease in force, and its denial.
pub(super) fn find_rule_withdrawal<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    (tenant, donor, agreement): (&'b Document<Tenant>, &'b Document<Cluster>, Option<&'b Document<Agreement>>),
) -> Option<(LeaseTreatment, Denial)> {
    let mut rules = bundle.denying_rules().filter(|rule| rule.spec.on_withdrawal > LeaseTreatment::Finish).peekable();
    rules.peek()?;
    let rule_facts = RuleFacts::of(bundle, facts, (tenant, donor, agreement));
    let context = rule_facts.context();
    let mut tightest: Option<(LeaseTreatment, Denial)> = None;
    for rule in rules {
        let treatment = rule.spec.on_withdrawal;
        if tightest.as_ref().is_none_or(|(found, _)| treatment > *found)
            && let Err(denial) = check_rule(rule, &context)
        {
            tightest = Some((treatment, *denial));
        }
    }
    tightest
}

fn check_rule(rule: &Document<Rule>, context: &Context<'_, '_>) -> CheckResult<()> {
    let reason = match (rule.spec.effect, rule.spec.condition.holds(context)) {
        (RuleEffect::Deny, Ok(false)) | (RuleEffect::Require, Ok(true)) => return Ok(()),
        (RuleEffect::Deny, Ok(true)) => "denies it".to_owned(),
        (_, Ok(_)) => "requires something else".to_owned(),
        (_, Err(error)) => format!("cannot be evaluated for it, which denies it: {error}"),
    };
    let by = rule.cite(rule.spec.effect.field());
    let message = format!("{} (rule `{}` {reason})", rule.spec.message, rule.name);
    deny(DenyCode::Rule, message, format!("ask for something else, or ask a maintainer to change {by}"), vec![by])
}

impl<'f> RuleFacts<'f> {
    fn of(
        bundle: &'f Bundle,
        facts: &BorrowFacts<'f>,
        (tenant, donor, agreement): (&'f Document<Tenant>, &'f Document<Cluster>, Option<&'f Document<Agreement>>),
    ) -> Self {
        Self {
            origin: facts.origin_cluster,
            request_milli: facts.request_milli(),
            duration_ms: facts.duration_ms,
            delivery: facts.delivery,
            tenant,
            institution: bundle.institutions.get(&tenant.spec.institution),
            donor,
            class: bundle.classes.get(facts.class),
            lease: (agreement.map_or("", |agreement| &agreement.name), facts.gpus_milli),
        }
    }

    /// The variables of all rules. Fields are read when a condition asks for them.
    fn context(&self) -> Context<'_, '_> {
        context([
            ("request", RecordValue::boxed(self, request)),
            ("tenant", RecordValue::boxed(self, tenant)),
            ("institution", RecordValue::boxed(self, institution)),
            ("donor", RecordValue::boxed(self, donor)),
            ("class", RecordValue::boxed(self, class)),
            ("lease", RecordValue::boxed(self, lease)),
        ])
    }
}

type Found<'v> = Option<Box<dyn Val + 'v>>;

fn request<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    Some(match field {
        "origin" => text(facts.origin),
        "gpus" => Box::new(QuantityValue::of_milli(facts.request_milli)),
        "durationSeconds" => whole(facts.duration_ms.div_ceil(1_000)),
        "delivery" => text(facts.delivery.as_str()),
        _ => return None,
    })
}

fn tenant<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    Some(match field {
        "name" => text(&facts.tenant.name),
        "weight" => whole(facts.tenant.spec.weight.into()),
        _ => return None,
    })
}

fn institution<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    let spec = facts.institution.map(|institution| &institution.spec);
    Some(match field {
        "name" => text(&facts.tenant.spec.institution),
        "region" => text(spec.and_then(|spec| spec.home_region.as_deref()).unwrap_or_default()),
        "weight" => whole(spec.map_or(0, |spec| spec.weight.into())),
        _ => return None,
    })
}

fn donor<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    Some(match field {
        "name" => text(&facts.donor.name),
        "institution" => text(&facts.donor.spec.institution),
        "region" => text(facts.donor.spec.region.as_deref().unwrap_or_default()),
        _ => return None,
    })
}

fn class<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    let spec = facts.class.map(|class| &class.spec);
    Some(match field {
        "name" => text(facts.class.map_or("", |class| &class.name)),
        "rank" => whole(spec.map_or(0, |spec| spec.rank.into())),
        "priceCredits" => {
            Box::new(QuantityValue::of_milli(spec.map_or(0, |spec| spec.price_credits_milli_per_gpu_hour)))
        }
        _ => return None,
    })
}

fn lease<'v>(facts: &'v RuleFacts<'_>, field: &str) -> Found<'v> {
    let (agreement, milli) = facts.lease;
    Some(match field {
        "agreement" => text(agreement),
        "gpus" => Box::new(QuantityValue::of_milli(milli)),
        _ => return None,
    })
}

fn whole<'v>(value: u64) -> Box<dyn Val + 'v> {
    number(i64::try_from(value).unwrap_or(i64::MAX))
}
