//! Differences between what a scenario expects and what happens.

use comity_policy::{Expected, ExpectedReason, ExpectedReclaim};

use crate::actual::{Actual, Reason, Reclaimed};

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field below `expect`.
    pub field: String,
    /// What the scenario expects.
    pub expected: String,
    /// What happens.
    pub actual: String,
}

/// Compares all that the scenario expects.
pub(crate) fn differences(expected: &Expected, actual: &Actual) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |field: &str, expected: Option<&str>, actual: Option<&str>| {
        if let Some(expected) = expected.filter(|expected| actual != Some(*expected)) {
            let actual = actual.unwrap_or("none").to_owned();
            found.push(Difference { field: field.to_owned(), expected: expected.to_owned(), actual });
        }
    };
    compare(
        "decision",
        expected.decision.map(comity_policy::ExpectedDecision::as_str),
        actual.decision.map(comity_policy::ExpectedDecision::as_str),
    );
    compare("donor", expected.donor.as_deref(), actual.donor.as_deref());
    compare("class", expected.class.as_deref(), actual.class.as_deref());
    compare("agreement", expected.agreement.as_deref(), actual.agreement.as_deref());
    for citation in expected.cites.iter().filter(|citation| !citation.is_in(&actual.cites)) {
        let expected = if citation.of_field { citation.document.to_string() } else { citation.text.clone() };
        found.push(Difference { field: "cites".to_owned(), expected, actual: listed(&actual.cites) });
    }
    for (index, reason) in expected.reasons.iter().enumerate() {
        if !actual.reasons.iter().any(|actual| is_meant(reason, actual)) {
            found.push(Difference {
                field: format!("reasons[{index}]"),
                expected: expected_reason(reason),
                actual: reasons_of(reason.donor.as_deref(), &actual.reasons),
            });
        }
    }
    for text in expected.warnings.iter().filter(|text| !actual.warnings.iter().any(|warning| warning.contains(*text))) {
        let actual = listed(&actual.warnings);
        found.push(Difference { field: "warnings".to_owned(), expected: text.clone(), actual });
    }
    if let Some(expected) = expected.reclaims.as_ref().filter(|expected| !are_meant(expected, &actual.reclaims)) {
        let reclaimed = |lease: &str, reason: Option<&str>| match reason {
            Some(reason) => format!("{lease} ({reason})"),
            None => lease.to_owned(),
        };
        let wanted: Vec<String> = expected.iter().map(|it| reclaimed(&it.lease, it.reason.as_deref())).collect();
        let seen: Vec<String> = actual.reclaims.iter().map(|it| reclaimed(&it.lease, Some(&it.reason))).collect();
        found.push(Difference { field: "reclaims".to_owned(), expected: listed(&wanted), actual: listed(&seen) });
    }
    found
}

fn listed(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// Whether a reason is the expected one.
fn is_meant(expected: &ExpectedReason, actual: &Reason) -> bool {
    expected.donor.as_ref().is_none_or(|donor| actual.donor.as_ref() == Some(donor))
        && expected.code.as_ref().is_none_or(|code| actual.code == *code)
        && expected.message.as_ref().is_none_or(|text| actual.message.contains(text.as_str()))
        && expected.cites.iter().all(|citation| citation.is_in(&actual.cites))
}

/// Whether these are the expected reclaims, and no others. Both are sorted by lease.
fn are_meant(expected: &[ExpectedReclaim], actual: &[Reclaimed]) -> bool {
    let is_meant = |expected: &ExpectedReclaim, actual: &Reclaimed| {
        expected.lease == actual.lease && expected.reason.as_ref().is_none_or(|reason| *reason == actual.reason)
    };
    expected.len() == actual.len() && expected.iter().zip(actual).all(|(expected, actual)| is_meant(expected, actual))
}

fn expected_reason(reason: &ExpectedReason) -> String {
    let mut parts = Vec::new();
    parts.extend(reason.donor.iter().map(|donor| format!("{donor}:")));
    parts.extend(reason.code.clone());
    parts.extend(reason.message.iter().map(|text| format!("with the text {text:?}")));
    let cited = |citation: &comity_policy::Citation| {
        if citation.of_field { citation.document.to_string() } else { citation.text.clone() }
    };
    let cites: Vec<String> = reason.cites.iter().map(cited).collect();
    if !cites.is_empty() {
        parts.push(format!("by {}", cites.join(", ")));
    }
    parts.join(" ")
}

/// The reasons of one donor, or of all.
fn reasons_of(donor: Option<&str>, reasons: &[Reason]) -> String {
    let asked = reasons.iter().filter(|reason| donor.is_none() || reason.donor.as_deref() == donor);
    let shown: Vec<String> = asked.map(ToString::to_string).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join("\n") }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(donor) = &self.donor {
            write!(f, "{donor}: ")?;
        }
        write!(f, "{}: {}", self.code, self.message)?;
        if !self.cites.is_empty() {
            write!(f, " (by {})", self.cites.join(", "))?;
        }
        Ok(())
    }
}
