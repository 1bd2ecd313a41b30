//! Agreement: lets institutions borrow from other institutions.

use std::collections::BTreeSet;

use comity_types::LeaseTreatment;
use serde::Serialize;

use super::Spec;
use super::on_withdrawal::read_on_withdrawal;
use crate::amounts;
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::{Node, Value};

pub use agreement_data::AgreementData;

mod agreement_data;

/// Lets institutions borrow from other institutions. Borrowing within an institution needs no agreement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Agreement {
    /// `parties`, or `borrowers` and `lenders`.
    pub sides: AgreementSides,
    /// `classes`: the classes it covers.
    pub classes: BTreeSet<String>,
    /// `maxGpus`: most GPUs lent under it at a time, in milli-GPU.
    pub max_gpus_milli: Option<u64>,
    /// `from`: its first moment, in milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// `until`: its last moment, in milliseconds since 1970.
    pub until_ms: Option<u64>,
    /// `data`: what leases under it may read of datasets that demand an agreement.
    pub data: AgreementData,
    /// `onWithdrawal`: what becomes of leases under it once it no longer covers them; drain by default.
    pub on_withdrawal: LeaseTreatment,
    /// `description`: free text; may be empty.
    pub description: String,
}

/// The borrowing and the lending institutions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AgreementSides {
    /// `parties`: each may borrow from each other.
    Mutual(BTreeSet<String>),
    /// `borrowers` and `lenders`: one way.
    OneWay {
        /// The institutions that may borrow.
        borrowers: BTreeSet<String>,
        /// The institutions that lend.
        lenders: BTreeSet<String>,
    },
}

impl Agreement {
    /// Whether `borrower` may borrow from `lender`, both institutions, at some time and in some class.
    #[must_use]
    pub fn covers(&self, borrower: &str, lender: &str) -> bool {
        match &self.sides {
            AgreementSides::Mutual(parties) => parties.contains(borrower) && parties.contains(lender),
            AgreementSides::OneWay { borrowers, lenders } => borrowers.contains(borrower) && lenders.contains(lender),
        }
    }
}

impl Spec for Agreement {
    const KIND: Kind = Kind::Agreement;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let sides = read_sides(fields, reader);
        let classes = fields.required("classes", reader).map(|(path, node)| {
            reader.require_items(&path, node, "name at least one GpuClass");
            reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::GpuClass)))
        });
        let max = fields.optional("maxGpus", reader).and_then(|(path, node)| reader.gpus_milli(&path, node));
        let from = fields.optional("from", reader).and_then(|(path, node)| reader.start_ms(&path, node));
        let until_field = fields.optional("until", reader);
        let until = until_field.as_ref().and_then(|(path, node)| reader.end_ms(path, node));
        if let (Some(from), Some(until), Some((_, node))) = (from, until, &until_field)
            && until < from
        {
            let message = format!(
                "{} ends ({}) before it begins ({})",
                reader.label,
                amounts::show_time(until),
                amounts::show_time(from)
            );
            reader.problems.at(
                node.place,
                ProblemCode::Contradiction,
                message,
                "swap `from` and `until`, or correct one of them",
            );
        }
        let data = fields.optional("data", reader).and_then(|(path, node)| AgreementData::read(&path, node, reader));
        let on_withdrawal = read_on_withdrawal(Self::KIND, fields, reader);
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        Some(Self {
            sides: sides?,
            classes: classes?,
            max_gpus_milli: max,
            from_ms: from,
            until_ms: until,
            data: data.unwrap_or_default(),
            on_withdrawal,
            description: description.unwrap_or_default(),
        })
    }
}

fn read_sides(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<AgreementSides> {
    let parties = fields.optional("parties", reader);
    let borrowers = fields.optional("borrowers", reader);
    let lenders = fields.optional("lenders", reader);
    let place = fields.place();
    const REMEDY: &str =
        "write `parties: [a, b]` (each borrows from each other), or `borrowers: [a]` and `lenders: [b]` (one way)";
    match (parties, borrowers, lenders) {
        (Some((path, node)), None, None) => {
            if matches!(&node.value, Value::List(items) if items.len() < 2) {
                let message = format!("`{path}` of {} needs two institutions at least", reader.label);
                reader.problems.at(node.place, ProblemCode::Contradiction, message, "add the other party");
            }
            Some(AgreementSides::Mutual(read_institutions(reader, &path, node)))
        }
        (None, Some((borrowers_path, borrowers)), Some((lenders_path, lenders))) => {
            reader.require_items(&borrowers_path, borrowers, "name at least one institution");
            reader.require_items(&lenders_path, lenders, "name at least one institution");
            Some(AgreementSides::OneWay {
                borrowers: read_institutions(reader, &borrowers_path, borrowers),
                lenders: read_institutions(reader, &lenders_path, lenders),
            })
        }
        (Some((_, node)), ..) => {
            let message = format!("{} has `parties` beside `borrowers` or `lenders`", reader.label);
            reader.problems.at(node.place, ProblemCode::Contradiction, message, REMEDY);
            None
        }
        (None, ..) => {
            let message = format!("{} does not say who borrows from whom", reader.label);
            reader.problems.at(place, ProblemCode::MissingField, message, REMEDY);
            None
        }
    }
}

fn read_institutions(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> BTreeSet<String> {
    reader.set(path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::Institution)))
}
