//! Options of changes: a dry run, and how something is deleted. kubectl sends those of deletions in the body.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;

use crate::answers::{Refusal, number, parameters};

/// How something is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeleteOptions {
    pub(super) dry_run: bool,
    pub(super) grace: Option<Duration>,
    /// The uid that it must have.
    pub(super) uid: Option<String>,
}

/// Whether a change is only tried.
pub(super) fn is_dry_run(query: Option<&str>) -> bool {
    parameters(query).contains_key("dryRun")
}

/// Reads both the query and the body.
pub(super) fn delete_options(query: Option<&str>, body: &[u8]) -> Result<DeleteOptions, Refusal> {
    let options: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(body).map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the options are no JSON"))?
    };
    let given = number(&parameters(query), "gracePeriodSeconds")?.or(options["gracePeriodSeconds"].as_u64());
    Ok(DeleteOptions {
        dry_run: is_dry_run(query) || options["dryRun"].as_array().is_some_and(|ways| !ways.is_empty()),
        grace: given.map(Duration::from_secs),
        uid: options["preconditions"]["uid"].as_str().map(str::to_owned),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_both_places() {
        let body = br#"{"kind":"DeleteOptions","gracePeriodSeconds":5,"dryRun":["All"],"preconditions":{"uid":"u"}}"#;
        let read = delete_options(None, body).unwrap();
        let grace = Some(Duration::from_secs(5));
        assert_eq!(read, DeleteOptions { dry_run: true, grace, uid: Some("u".to_owned()) });
        let read = delete_options(Some("gracePeriodSeconds=0&dryRun=All"), b"").unwrap();
        assert_eq!((read.dry_run, read.grace), (true, Some(Duration::ZERO)));
        assert_eq!(delete_options(None, b"{}").unwrap(), DeleteOptions::default());
        assert!(delete_options(None, b"x").is_err() && delete_options(Some("gracePeriodSeconds=x"), b"").is_err());
    }
}
