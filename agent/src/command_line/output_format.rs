//! Output of checks: text for people, JSON for scripts.

use clap::ValueEnum;
use comity_types::{printable, printable_json};
use serde::Serialize;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// For scripts; releases only add fields.
    Json,
}

impl OutputFormat {
    /// Prints a whole answer.
    pub(super) fn print(self, text: &str, answer: &impl Serialize) {
        match self {
            Self::Text => print!("{}", printable(text)),
            Self::Json => {
                let json = serde_json::to_string_pretty(answer).expect("strings and lists always serialise");
                println!("{}", printable_json(&json));
            }
        }
    }
}
