//! `comity policy schema`: prints the JSON Schemas of policy documents.

use clap::Args;
use clap::builder::PossibleValuesParser;
use comity_policy::{policy_schema, schema, schema_kinds};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::Session;

const SCHEMA_EXAMPLES: &str = "\
Examples:
  comity policy schema > policy.json            every document of a policy directory
  comity policy schema PolicyTest > policytest.json
  comity policy schema Tenant | jq .properties.spec.required

Editors check and complete policy files with them. 'comity policy check' finds
more: names that no document declares, and fields that contradict each other.
";

/// `comity policy schema`.
#[derive(Debug, Args)]
#[command(after_help = SCHEMA_EXAMPLES)]
pub struct PolicySchemaArgs {
    /// Kind of document, or PolicyTest for test files [default: all documents of a policy directory]
    #[arg(value_parser = PossibleValuesParser::new(schema_kinds()), ignore_case = true)]
    kind: Option<String>,
}

/// A JSON Schema. It is JSON for people, too.
#[derive(Serialize)]
#[serde(transparent)]
struct JsonSchema(serde_json::Value);

impl Answer for JsonSchema {
    fn table(&self, _now_ms: u64) -> Sheet {
        format!("{:#}\n", self.0).into()
    }
}

impl PolicySchemaArgs {
    pub(super) fn run(&self, session: &Session) -> Result<(), Failure> {
        let found = match &self.kind {
            None => policy_schema(),
            Some(kind) => schema(kind).ok_or_else(|| {
                Failure::usage(format!("there is no kind {kind:?}"))
                    .field("<KIND>", kind)
                    .remedy(format!("name one of {}", schema_kinds().join(", ")))
            })?,
        };
        session.print(&JsonSchema(found))
    }
}
