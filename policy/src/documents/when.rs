//! `during` and `outside`: when a term, a quota or a class is in force.

use serde::Serialize;

use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};

/// The schedule in which something is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum When {
    /// `during`: while this schedule is open.
    During(String),
    /// `outside`: while this schedule is closed.
    Outside(String),
}

impl When {
    /// Reads `during` and `outside`. At most one may be given.
    pub(super) fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let during = fields.optional("during", reader);
        let outside = fields.optional("outside", reader);
        if let (Some(_), Some((path, node))) = (&during, &outside) {
            let message = format!("{} has `{path}` beside `during`", reader.label);
            reader.problems.at(node.place, ProblemCode::Contradiction, message, "keep one of them");
            return None;
        }
        let mut schedule = |field: (String, _)| reader.reference(&field.0, field.1, Target::Document(Kind::Schedule));
        match (during, outside) {
            (Some(field), _) => schedule(field).map(Self::During),
            (None, Some(field)) => schedule(field).map(Self::Outside),
            (None, None) => None,
        }
    }

    /// The schedule's name.
    #[must_use]
    pub fn schedule(&self) -> &str {
        match self {
            Self::During(name) | Self::Outside(name) => name,
        }
    }

    /// The field that names the schedule.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::During(_) => "during",
            Self::Outside(_) => "outside",
        }
    }
}
