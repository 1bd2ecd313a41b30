//! Measures both.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use comity_policy::{Bundle, UsageTable, load, render_problems};
use comity_simulation::random::Random;
use comity_simulation::speed::processor_time;
use serde::Serialize;

use crate::federation::{Size, policy_files};
use crate::opa::Opa;
use crate::questions::{Question, lease_use, questions};
use crate::rules::{TwinRule, twin_rules};

/// Requests that are asked in turn.
const QUESTIONS: usize = 16_384;
/// Leases in use.
const LEASES: usize = 4_000;
/// Requests on which both have to agree.
const COMPARED: usize = 2_000;
/// Documents of the check.
const CHECKED_DOCUMENTS: usize = 10_000;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Documents of the federation.
    pub size: Size,
    /// Rules.
    pub rules: usize,
    /// Seconds of processor time of each measurement.
    pub seconds: u64,
    /// Seed of requests and leases.
    pub seed: u64,
}

/// The figures.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReport {
    /// Documents of the federation.
    pub documents: usize,
    /// Rules among them.
    pub rules: usize,
    /// Percent of the requests that are allowed.
    pub allowed_percent: f64,
    /// Decisions per second of processor time, as the planner asks: a denial has its reasons, an allowance its agreement.
    pub decisions_per_second: f64,
    /// The same, where an allowance names all documents behind it.
    pub explained_per_second: f64,
    /// Decisions per second of regorus: allowed or not, without reasons.
    pub rego_per_second: f64,
    /// Requests on which both agreed.
    pub compared: usize,
    /// Documents of the check.
    pub checked_documents: usize,
    /// Seconds of processor time to read, check and compile them.
    pub check_seconds: f64,
}

/// Asks both about the same requests, on one thread, one after the other.
///
/// # Errors
/// If the documents are invalid, or the two disagree.
pub fn measure(options: &Options) -> Result<PolicyReport> {
    let rules = twin_rules(options.rules);
    let bundle = compile(options.size, &rules)?;
    let mut draw = Random::new(options.seed);
    let (usage, in_use) = use_of(&bundle, options.size, &mut draw);
    let asked = questions(options.size, QUESTIONS, &mut draw);
    let mut opa = Opa::new(options.size, &rules, &in_use)?;
    compare(&bundle, &usage, &mut opa, &asked)?;

    let length = Duration::from_secs(options.seconds);
    let decisions_per_second = rate(length, &asked, |question| {
        Ok(bundle.may_borrow_under(black_box(&question.facts(question.in_use(&usage)))).is_ok())
    })?;
    let explained_per_second = rate(length, &asked, |question| {
        Ok(bundle.may_borrow(black_box(&question.facts(question.in_use(&usage)))).denial().is_none())
    })?;
    let inputs = asked.iter().map(Opa::input).collect::<Result<Vec<_>>>()?;
    let rego_per_second = rate(length, &inputs, |input| opa.allows(black_box(input)))?;
    let allowed = asked.iter().filter(|question| is_allowed(&bundle, &usage, question)).count();
    let (checked_documents, check_seconds) = check(&rules)?;
    Ok(PolicyReport {
        documents: documents_of(options.size, options.rules),
        rules: options.rules,
        allowed_percent: allowed as f64 * 100.0 / asked.len() as f64,
        decisions_per_second,
        explained_per_second,
        rego_per_second,
        compared: COMPARED,
        checked_documents,
        check_seconds,
    })
}

/// Fails unless both give the same answer to each of the first requests.
///
/// # Errors
/// The first request on which they disagree.
pub fn compare(bundle: &Bundle, usage: &UsageTable, opa: &mut Opa, asked: &[Question]) -> Result<()> {
    for question in asked.iter().take(COMPARED) {
        let decision = bundle.may_borrow(&question.facts(question.in_use(usage)));
        let theirs = opa.allows(&Opa::input(question)?)?;
        let ours = decision.denial();
        ensure!(
            ours.is_none() == theirs,
            "Rego {} {question:?}, Comity: {ours:?}",
            if theirs { "allows" } else { "denies" }
        );
    }
    Ok(())
}

/// Compiles the federation.
///
/// # Errors
/// If a document is invalid.
pub fn compile(size: Size, rules: &[TwinRule]) -> Result<Bundle> {
    load(policy_files(size, rules)).map_err(|problems| anyhow!("{}", render_problems(&problems)))
}

/// Leases that the policy allows one after the other, with their agreements.
#[must_use]
pub fn use_of(bundle: &Bundle, size: Size, draw: &mut Random) -> (UsageTable, Vec<(Question, Option<String>)>) {
    let (mut usage, mut granted) = (UsageTable::under(bundle), Vec::new());
    for lease in questions(size, LEASES, draw) {
        let agreement = bundle.may_borrow_under(&lease.facts(lease.in_use(&usage))).map(|name| name.map(str::to_owned));
        if let Ok(agreement) = agreement {
            usage.add(&lease_use(&lease, agreement.as_deref()));
            granted.push((lease, agreement));
        }
    }
    (usage, granted)
}

fn is_allowed(bundle: &Bundle, usage: &UsageTable, question: &Question) -> bool {
    bundle.may_borrow_under(&question.facts(question.in_use(usage))).is_ok()
}

/// Calls per second of processor time.
fn rate<T>(length: Duration, items: &[T], mut call: impl FnMut(&T) -> Result<bool>) -> Result<f64> {
    // The first turn fills caches and is not counted.
    for item in items.iter().take(512) {
        black_box(call(item)?);
    }
    let (start, mut calls) = (processor_time(), 0_u64);
    while processor_time() - start < length {
        for item in items.iter().cycle().skip(usize::try_from(calls).unwrap_or(0) % items.len()).take(512) {
            black_box(call(item)?);
        }
        calls += 512;
    }
    Ok(calls as f64 / (processor_time() - start).as_secs_f64())
}

fn documents_of(size: Size, rules: usize) -> usize {
    let others = policy_files(Size { tenants: 0, agreements: 0 }, &[]);
    let count = others.iter().map(|file| file.text.matches("\nkind: ").count()).sum::<usize>();
    count + size.tenants * 2 + size.agreements + rules
}

/// Documents and seconds of the largest bundle.
fn check(rules: &[TwinRule]) -> Result<(usize, f64)> {
    let agreements = 500;
    let others = documents_of(Size { tenants: 0, agreements }, rules.len());
    let size = Size { tenants: (CHECKED_DOCUMENTS - others) / 2, agreements };
    let files = policy_files(size, rules);
    let start = processor_time();
    let bundle = load(files).map_err(|problems| anyhow!("{}", render_problems(&problems)))?;
    let seconds = (processor_time() - start).as_secs_f64();
    black_box(bundle);
    Ok((documents_of(size, rules.len()), seconds))
}
