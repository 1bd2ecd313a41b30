//! Rule: a condition that denies, requires, warns or prefers, with a message for people.

use comity_types::LeaseTreatment;
use serde::Serialize;

use super::Spec;
use super::on_withdrawal::{ON_WITHDRAWAL, default_treatment, read_treatment};
use super::read_expression::read_expression;
use crate::expression::{RuleCondition, parse_condition, parse_preference};
use crate::kind::Kind;
use crate::limits::MAX_RULE_WEIGHT;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};

/// A condition on who borrows what from whom, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// `deny`, `require`, `warn` or `prefer`: what follows from the condition.
    pub effect: RuleEffect,
    /// The condition: CEL over `request`, `tenant`, `institution`, `donor`, `class` and, except in `prefer`, `lease`.
    pub condition: RuleCondition,
    /// `onWithdrawal`: what becomes of leases in force that it denies; finish by default, and for `warn` and `prefer`.
    pub on_withdrawal: LeaseTreatment,
    /// `message`: why, for people.
    pub message: String,
}

/// What follows from a rule's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RuleEffect {
    /// `deny`: no lease where it holds.
    Deny,
    /// `require`: no lease where it does not hold.
    Require,
    /// `warn`: the message is shown where it holds.
    Warn,
    /// `prefer`: donors where it holds come first, those with a higher sum of weights before others.
    Prefer {
        /// `weight`, from 1.
        weight: u32,
    },
}

impl RuleEffect {
    /// The field with the condition.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Require => "require",
            Self::Warn => "warn",
            Self::Prefer { .. } => "prefer",
        }
    }
}

impl Spec for Rule {
    const KIND: Kind = Kind::Rule;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let whole = fields.place();
        let weight_field = fields.optional("weight", reader);
        let weight = weight_field.as_ref().map(|(path, node)| reader.number(path, node, 1, MAX_RULE_WEIGHT.into()));
        let preferred = match weight {
            Some(weight) => weight.and_then(|weight| u32::try_from(weight).ok()),
            None => Some(1),
        };
        let withdrawal_field = fields.optional(ON_WITHDRAWAL, reader);
        let on_withdrawal = withdrawal_field.as_ref().and_then(|(path, node)| read_treatment(path, node, reader));
        let mut given = Vec::new();
        for effect in [RuleEffect::Deny, RuleEffect::Require, RuleEffect::Warn, RuleEffect::Prefer { weight: 1 }] {
            given.extend(fields.optional(effect.field(), reader).map(|field| (effect, field)));
        }
        let message = fields.required("message", reader).and_then(|(path, node)| {
            let text = reader.text(&path, node)?;
            if text.is_empty() {
                let problem = format!("`{path}` of {} is empty", reader.label);
                reader.problems.at(node.place, ProblemCode::MissingField, problem, "write why, for people");
                return None;
            }
            Some(text)
        });
        if given.is_empty() {
            let text = format!("{} decides nothing", reader.label);
            let remedy = "add `deny:`, `require:`, `warn:` or `prefer:` with a condition";
            reader.problems.at(whole, ProblemCode::MissingField, text, remedy);
        }
        if let [_, (_, (path, node)), ..] = given.as_slice() {
            let text = format!("{} has `{path}` beside `{}`", reader.label, given[0].0.field());
            reader.problems.at(node.place, ProblemCode::Contradiction, text, "write two Rules");
        }
        let prefers = given.iter().any(|(effect, _)| matches!(effect, RuleEffect::Prefer { .. }));
        if let Some((path, node)) = weight_field.filter(|_| !prefers && !given.is_empty()) {
            let text = format!("{} has `{path}`, but prefers nothing", reader.label);
            reader.problems.at(node.place, ProblemCode::Contradiction, text, "remove it, or write `prefer:`");
        }
        let denies = given.iter().any(|(effect, _)| matches!(effect, RuleEffect::Deny | RuleEffect::Require));
        if let Some((path, node)) = withdrawal_field.filter(|_| !denies && !given.is_empty()) {
            let text = format!("{} has `{path}`, but denies nothing", reader.label);
            reader.problems.at(
                node.place,
                ProblemCode::Contradiction,
                text,
                "remove it, or write `deny:` or `require:`",
            );
        }
        let read = |(effect, (path, node)): (RuleEffect, (String, _))| {
            let parse = if matches!(effect, RuleEffect::Prefer { .. }) { parse_preference } else { parse_condition };
            read_expression(reader, &path, node, parse).map(|condition| (effect, condition))
        };
        let conditions: Vec<_> = given.into_iter().map(read).collect();
        let [Some((effect, condition))] = <[_; 1]>::try_from(conditions).ok()? else { return None };
        let effect = match effect {
            RuleEffect::Prefer { .. } => RuleEffect::Prefer { weight: preferred? },
            other => other,
        };
        let on_withdrawal = on_withdrawal.unwrap_or(default_treatment(Self::KIND));
        Some(Self { effect, condition, on_withdrawal, message: message? })
    }
}
