//! Completes names of the caller's contexts.

use std::ffi::OsStr;

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use comity_runtime::Contexts;

/// Completes names of the caller's contexts; offers none if they cannot be read.
pub(crate) fn context_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = Contexts::of_caller().and_then(|contexts| contexts.list().ok()).unwrap_or_default();
        let matching = names.into_iter().filter(|name| typed.to_str().is_some_and(|typed| name.starts_with(typed)));
        matching.map(CompletionCandidate::new).collect::<Vec<_>>()
    })
}
