//! Evaluates rules.

use std::cell::OnceCell;

use cel::Context;
use cel::common::value::Val;
use comity_types::{DataNeed, Delivery, LeaseTreatment};

use super::citations::Citations;
use super::denials::{CheckResult, deny};
use super::{BorrowFacts, Denial, DenyCode};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, Document, GpuClass, Institution, Rule, RuleEffect, Tenant};
use crate::expression::{QuantityValue, RecordValue, RuleCondition, RuleField, RuleValue, context};

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
    /// Datasets that it reads.
    pub data: &'f [DataNeed],
    /// The purpose for which it reads them; empty for none.
    pub purpose: &'f str,
}

/// What rules see of a lease. Unknown texts are empty, unknown numbers 0.
#[derive(Debug)]
struct RuleFacts<'f> {
    origin: &'f str,
    request_milli: u64,
    duration_ms: u64,
    delivery: Delivery,
    data: &'f [DataNeed],
    purpose: &'f str,
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
        let evaluation = Evaluation::of(&rule_facts);
        // A warning that cannot be evaluated is shown rather than lost.
        let shown = warnings.filter(|rule| evaluation.holds(&rule.spec.condition).unwrap_or(true));
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
            data: facts.data,
            purpose: facts.purpose,
            tenant,
            institution: self.institutions.get(&tenant.spec.institution),
            donor,
            class: facts.class.and_then(|class| self.classes.get(class)),
            lease: ("", 0),
        };
        let evaluation = Evaluation::of(&rule_facts);
        let weights = rules.map(|rule| match (rule.spec.effect, evaluation.holds(&rule.spec.condition)) {
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
    let evaluation = Evaluation::of(&rule_facts);
    for rule in rules {
        check_rule(rule, &evaluation)?;
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
    let evaluation = Evaluation::of(&rule_facts);
    let mut tightest: Option<(LeaseTreatment, Denial)> = None;
    for rule in rules {
        let treatment = rule.spec.on_withdrawal;
        if tightest.as_ref().is_none_or(|(found, _)| treatment > *found)
            && let Err(denial) = check_rule(rule, &evaluation)
        {
            tightest = Some((treatment, *denial));
        }
    }
    tightest
}

fn check_rule<'f>(rule: &'f Document<Rule>, evaluation: &Evaluation<'f>) -> CheckResult<()> {
    let reason = match (rule.spec.effect, evaluation.holds(&rule.spec.condition)) {
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
            data: facts.data,
            purpose: facts.purpose,
            tenant,
            institution: bundle.institutions.get(&tenant.spec.institution),
            donor,
            class: bundle.classes.get(facts.class),
            lease: (agreement.map_or("", |agreement| &agreement.name), facts.gpus_milli),
        }
    }

    fn value(&self, field: RuleField) -> RuleValue<'f> {
        let class = self.class.map(|class| &class.spec);
        let institution = self.institution.map(|institution| &institution.spec);
        let (agreement, milli) = self.lease;
        match field {
            RuleField::RequestOrigin => RuleValue::Text(self.origin),
            RuleField::RequestGpus => gpus(self.request_milli),
            RuleField::RequestDurationSeconds => RuleValue::whole(self.duration_ms.div_ceil(1_000)),
            RuleField::RequestDelivery => RuleValue::Text(self.delivery.as_str()),
            RuleField::RequestData => RuleValue::Datasets(self.data),
            RuleField::RequestPurpose => RuleValue::Text(self.purpose),
            RuleField::TenantName => RuleValue::Text(&self.tenant.name),
            RuleField::TenantWeight => RuleValue::whole(self.tenant.spec.weight.into()),
            RuleField::InstitutionName => RuleValue::Text(&self.tenant.spec.institution),
            RuleField::InstitutionRegion => {
                RuleValue::Text(institution.and_then(|spec| spec.home_region.as_deref()).unwrap_or_default())
            }
            RuleField::InstitutionWeight => RuleValue::whole(institution.map_or(0, |spec| spec.weight.into())),
            RuleField::DonorName => RuleValue::Text(&self.donor.name),
            RuleField::DonorInstitution => RuleValue::Text(&self.donor.spec.institution),
            RuleField::DonorRegion => RuleValue::Text(self.donor.spec.region.as_deref().unwrap_or_default()),
            RuleField::ClassName => RuleValue::Text(self.class.map_or("", |class| &class.name)),
            RuleField::ClassRank => RuleValue::whole(class.map_or(0, |spec| spec.rank.into())),
            RuleField::ClassPriceCredits => {
                let milli = class.map_or(0, |spec| spec.price_credits_milli_per_gpu_hour);
                RuleValue::Quantity(QuantityValue::of_milli(milli))
            }
            RuleField::LeaseAgreement => RuleValue::Text(agreement),
            RuleField::LeaseGpus => gpus(milli),
        }
    }

    /// The variables of all rules. Fields are read when a condition asks for them.
    fn context(&self) -> Context<'_, '_> {
        context([
            ("request", RecordValue::boxed(self, |facts, field| facts.named("request", field))),
            ("tenant", RecordValue::boxed(self, |facts, field| facts.named("tenant", field))),
            ("institution", RecordValue::boxed(self, |facts, field| facts.named("institution", field))),
            ("donor", RecordValue::boxed(self, |facts, field| facts.named("donor", field))),
            ("class", RecordValue::boxed(self, |facts, field| facts.named("class", field))),
            ("lease", RecordValue::boxed(self, |facts, field| facts.named("lease", field))),
        ])
    }

    fn named(&self, variable: &str, field: &str) -> Option<Box<dyn Val + 'f>> {
        Some(self.value(RuleField::named(variable, field)?).boxed())
    }
}

fn gpus<'f>(milli: u64) -> RuleValue<'f> {
    RuleValue::Quantity(QuantityValue::of_milli(milli))
}

/// Evaluates conditions over the same facts.
struct Evaluation<'f> {
    facts: &'f RuleFacts<'f>,
    /// Costs more than most conditions, so it is made when the first one needs the interpreter.
    context: OnceCell<Context<'f, 'f>>,
}

impl<'f> Evaluation<'f> {
    fn of(facts: &'f RuleFacts<'f>) -> Self {
        Self { facts, context: OnceCell::new() }
    }

    /// Whether a condition holds.
    ///
    /// # Errors
    /// Why it cannot be evaluated, in short.
    fn holds(&self, condition: &'f RuleCondition) -> Result<bool, String> {
        match condition.holds(&|field| self.facts.value(field)) {
            Some(holds) => Ok(holds),
            None => condition.interpret(self.context.get_or_init(|| self.facts.context())),
        }
    }
}
