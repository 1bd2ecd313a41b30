//! `onWithdrawal`: what becomes of leases in force when a document no longer permits them.

use comity_types::LeaseTreatment;

use crate::kind::Kind;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// The field.
pub(crate) const ON_WITHDRAWAL: &str = "onWithdrawal";

/// What a document without the field says. A Rule decides about the next term, unless it says more.
pub(crate) const fn default_treatment(kind: Kind) -> LeaseTreatment {
    match kind {
        Kind::Rule => LeaseTreatment::Finish,
        _ => LeaseTreatment::Drain,
    }
}

/// Reads the field of a document of this kind.
pub(super) fn read_on_withdrawal(
    kind: Kind,
    fields: &mut Fields<'_>,
    reader: &mut FieldReader<'_, '_>,
) -> LeaseTreatment {
    let given = fields.optional(ON_WITHDRAWAL, reader).and_then(|(path, node)| read_treatment(&path, node, reader));
    given.unwrap_or(default_treatment(kind))
}

/// Reads the value of the field.
pub(super) fn read_treatment(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<LeaseTreatment> {
    let words = LeaseTreatment::ALL.map(|treatment| (treatment.as_str(), treatment));
    reader.word(path, node, &words)
}
