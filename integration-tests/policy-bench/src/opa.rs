//! The peer: the same federation and the same rules in Rego, run by regorus' virtual machine, its fastest evaluator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::vm::RegoVM;
use regorus::{Engine, Value};
use serde_json::json;

use crate::federation::{
    CLASSES, INSTITUTIONS, MAX_CONCURRENT, MAX_LENT, MAX_PER_REQUEST, MAX_UNDER_AGREEMENT, OPEN_CLASSES, Size,
    classes_of, favoured_by, institution_of, parties_of, price_milli, rank_of, weight_of,
};
use crate::questions::Question;
use crate::rules::TwinRule;

/// The entry point of the program.
const ALLOW: &str = "data.comity.allow";

/// What a decision needs beside the rules. Lists are short, and looked up by borrower, as Comity does. `object.get` stands
/// where a plain reference would do: in a comprehension, regorus' machine ends the rule at a missing key.
const DECISION: &str = r#"package comity

import rego.v1

tenant := data.tenants[input.tenant]
institution := data.institutions[tenant.institution]
donor := data.clusters[input.donor]
class := data.classes[input.class]

default allow := false

allow if {
    input.origin in tenant.clusters
    input.class in tenant.classes
    input.request_milli <= 64000
    input.duration_s <= 604800
    input.donor != input.origin
    input.delivery in donor.delivery
    covered
    agreed
    not denied
    within_quota
    lent
}

serves(term) if not term.to

serves(term) if tenant.institution in term.to

covered if {
    some term in donor.lends
    input.class in term.classes
    serves(term)
}

agreed if tenant.institution == donor.institution

agreed if {
    some name in data.agreements_of[tenant.institution]
    agreement := data.agreements[name]
    donor.institution in agreement.lenders
    input.class in agreement.classes
    object.get(data.lent_under, name, 0) + input.gpus_milli <= agreement.max_milli
}

within_quota if {
    quota := data.quotas[input.tenant]
    input.request_milli <= quota.max_per_request_milli
    object.get(data.borrowed, input.tenant, 0) + input.gpus_milli <= quota.max_concurrent_milli
}

lent if {
    some term in donor.lends
    input.class in term.classes
    serves(term)
    not term.max_milli
}

lent if {
    some term in donor.lends
    input.class in term.classes
    serves(term)
    lent_here := object.get(data.lent, input.donor, {})
    used := sum([object.get(lent_here, name, 0) | some name in term.classes])
    used + input.gpus_milli <= term.max_milli
}
"#;

/// The machine with its program and data.
pub struct Opa {
    machine: RegoVM,
}

impl Opa {
    /// Compiles the rules and loads the documents and the leases in use, each with its agreement.
    ///
    /// # Errors
    /// If regorus refuses the program.
    pub fn new(size: Size, rules: &[TwinRule], leases: &[(Question, Option<String>)]) -> Result<Self> {
        let mut program = DECISION.to_owned();
        for rule in rules {
            let name = rule.name.replace('-', "_");
            for body in &rule.rego {
                // Writing to a String cannot fail.
                let _ = write!(program, "\n{name} if {{ {body} }}\n");
            }
            let not = if rule.effect == "require" { "not " } else { "" };
            let _ = write!(program, "\ndenied if {not}{name}\n");
        }
        let mut engine = Engine::new();
        engine.add_policy("comity.rego".to_owned(), program)?;
        let data = Value::from_json_str(&documents(size, leases).to_string())?;
        engine.add_data(data.clone())?;
        let compiled = engine.compile_with_entrypoint(&ALLOW.into()).context("the rules in Rego")?;
        let program = Compiler::compile_from_policy(&compiled, &[ALLOW]).context("the program of the rules")?;
        let mut machine = RegoVM::new();
        machine.load_program(program);
        machine.set_data(data)?;
        Ok(Self { machine })
    }

    /// A question as the machine's input.
    ///
    /// # Errors
    /// If regorus refuses the text.
    pub fn input(question: &Question) -> Result<Value> {
        let input = json!({
            "tenant": question.tenant,
            "origin": question.origin,
            "donor": question.donor,
            "class": question.class,
            "gpus_milli": question.gpus_milli,
            "request_milli": question.gpus_milli + question.beside_milli,
            "duration_s": question.duration_s,
            "delivery": question.delivery.as_str(),
        });
        Value::from_json_str(&input.to_string())
    }

    /// Whether the request is allowed.
    ///
    /// # Errors
    /// If the evaluation fails.
    pub fn allows(&mut self, input: &Value) -> Result<bool> {
        self.machine.set_input(input.clone());
        Ok(self.machine.execute()? == Value::from(true))
    }
}

fn names(noun: &str, numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{noun}-{number}")).collect()
}

fn documents(size: Size, leases: &[(Question, Option<String>)]) -> serde_json::Value {
    let named = |noun: &str, count: usize, value: &dyn Fn(usize) -> serde_json::Value| {
        let pairs = (0..count).map(|number| (format!("{noun}-{number}"), value(number)));
        serde_json::Value::Object(pairs.collect())
    };
    let mut agreements_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for agreement in 0..size.agreements {
        for borrower in parties_of(agreement).0 {
            agreements_of.entry(format!("inst-{borrower}")).or_default().push(format!("agreement-{agreement}"));
        }
    }
    let (mut borrowed, mut lent_under) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u64>::new());
    let mut lent = BTreeMap::<&str, BTreeMap<&str, u64>>::new();
    for (lease, agreement) in leases {
        *borrowed.entry(&lease.tenant).or_default() += lease.gpus_milli;
        *lent.entry(&lease.donor).or_default().entry(&lease.class).or_default() += lease.gpus_milli;
        if let Some(agreement) = agreement {
            *lent_under.entry(agreement).or_default() += lease.gpus_milli;
        }
    }
    json!({
        "classes": named("c", CLASSES, &|class| json!({"rank": rank_of(class), "price_milli": price_milli(class)})),
        "institutions": named("inst", INSTITUTIONS, &|institution| json!({
            "weight": weight_of(institution),
            "region": format!("region-{}", institution % 5),
        })),
        "clusters": named("site", INSTITUTIONS * 2, &|cluster| json!({
            "institution": format!("inst-{}", cluster / 2),
            "region": format!("region-{}", (cluster / 2 + cluster % 2) % 5),
            "delivery": ["namespace", "virtual-node"],
            "lends": [
                {"classes": names("c", 0..OPEN_CLASSES), "max_milli": MAX_LENT * 1_000},
                {"classes": names("c", OPEN_CLASSES..CLASSES), "to": names("inst", favoured_by(cluster))},
            ],
        })),
        "tenants": named("t", size.tenants, &|tenant| {
            let institution = institution_of(tenant);
            json!({
                "institution": format!("inst-{institution}"),
                "weight": weight_of(tenant),
                "classes": names("c", classes_of(tenant)),
                "clusters": names("site", [institution * 2, institution * 2 + 1]),
            })
        }),
        "quotas": named("t", size.tenants, &|_| json!({
            "max_concurrent_milli": MAX_CONCURRENT * 1_000,
            "max_per_request_milli": MAX_PER_REQUEST * 1_000,
        })),
        "agreements": named("agreement", size.agreements, &|agreement| {
            let (_, lenders, classes) = parties_of(agreement);
            json!({
                "lenders": names("inst", lenders),
                "classes": names("c", classes),
                "max_milli": MAX_UNDER_AGREEMENT * 1_000,
            })
        }),
        "agreements_of": agreements_of,
        "borrowed": borrowed,
        "lent": lent,
        "lent_under": lent_under,
    })
}
